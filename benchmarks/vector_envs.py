"""Steps per second of one Atari game through each way to step a batch of environments.

    pip install stable-baselines3 opencv-python-headless     # in an environment of its own
    python benchmarks/vector_envs.py --repeats 5

All play by the same protocol: 84 x 84 gray frames, a frame skip of 4, sticky actions. They take
turns; each turn makes the environments, warms them up and steps them with random actions. Then
an actor of each of sebulba's adapters trains, and the time is measured that the adapter takes
besides the environments. OUT.json holds every turn, OUT.md the medians.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro

import sebulba
from sebulba import envs

ROOT = Path(__file__).resolve().parent.parent
Step = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Options:
    """Step one Atari game in every way."""

    game: str = "pong"
    """As ale-py has it."""
    num_envs: int = 16
    repeats: int = 5
    seconds: float = 5.0
    """Of each turn."""
    out: Path = ROOT / "benchmarks" / "results" / "vector_envs"


def main(options: Options) -> None:
    """Step, train, and write OUT.json and OUT.md."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(options.repeats):
        # Back and forth, so that none is always the first.
        for name in list(WAYS)[:: 1 if repeat % 2 == 0 else -1]:
            with WAYS[name](options.game, options.num_envs) as step:
                rates[name].append(rate(step, options.num_envs, options.seconds))
            print(f"{name:40} {rates[name][-1]:8,.0f}", flush=True)
    shares = {name: share(options, way) for name, way in ADAPTERS.items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"options": dataclasses.asdict(options), "rates": rates, "shares": shares}
    options.out.with_suffix(".json").write_text(json.dumps(result, default=str) + "\n")
    text = table(rates, shares)
    options.out.with_suffix(".md").write_text(text)
    print(text)


def rate(step: Step, num_envs: int, seconds: float) -> float:
    """Steps per second of all environments together."""
    for _ in range(20):
        step()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        count += num_envs
    return count / (time.perf_counter() - start)


def camel(game: str) -> str:
    """The game's name as EnvPool and Gymnasium have it."""
    return "".join(word.capitalize() for word in game.split("_"))


def make_game(game: str) -> gymnasium.Env[Any, Any]:
    """One environment, with Gymnasium's wrapper for the protocol."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{camel(game)}-v5", frameskip=1, full_action_space=True)
    return gymnasium.wrappers.AtariPreprocessing(env, noop_max=1)


def make_envpool(game: str, num_envs: int) -> sebulba.Env:
    return envs.make(f"{camel(game)}-v5", num_envs, seed=0)


def make_ale(game: str, num_envs: int) -> sebulba.Env:
    return envs.make(f"ale:{game}", num_envs, seed=0)


def make_gymnasium(game: str, num_envs: int, processes: bool = False) -> sebulba.Env:
    return envs.GymnasiumEnv(partial(make_game, game), num_envs, 0, processes=processes)


def make_baselines(game: str, num_envs: int) -> Any:
    """Stable-Baselines3's ``SubprocVecEnv``, whose methods have the same names."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv([partial(make_game, game)] * num_envs)


@contextmanager
def stepping(make: Callable[[str, int], Any], game: str, num_envs: int) -> Iterator[Step]:
    """One step of what ``make`` makes, with random actions."""
    env = make(game, num_envs)
    env.reset()
    draw = np.random.default_rng(0)
    try:
        yield lambda: env.step(draw.integers(18, size=num_envs))
    finally:
        env.close()


ADAPTERS: dict[str, Callable[[str, int], sebulba.Env]] = {
    "EnvPool": make_envpool,
    "ale-py": make_ale,
    "Gymnasium": make_gymnasium,
    "Gymnasium, in processes": partial(make_gymnasium, processes=True),
}
WAYS: dict[str, Callable[[str, int], Any]] = {
    name: partial(stepping, make)
    for name, make in {
        **ADAPTERS,
        "SubprocVecEnv of Stable-Baselines3": make_baselines,
    }.items()
}


class Timed:
    """Sums the time that calls take."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.seconds = call, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.call(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


class Watched:
    """The steps of an adapter, and the time in which they do not wait for the environments."""

    def __init__(self, env: Any) -> None:
        self.step, self.inner = env.step, timed_inside(env)
        self.own, self.start = 0.0, 0.0

    def __call__(self, action: Any) -> Any:
        begin, before = time.perf_counter(), self._inside()
        self.start = self.start or begin
        timestep = self.step(action)
        self.own += time.perf_counter() - begin - (self._inside() - before)
        return timestep

    def share(self) -> float:
        """Of the time since the first step."""
        return self.own / (time.perf_counter() - self.start)

    def _inside(self) -> float:
        return sum(timed.seconds for timed in self.inner)


def share(options: Options, make: Callable[[str, int], sebulba.Env]) -> float:
    """The part of an actor's time that the adapter takes besides the environments, in training."""
    watched: list[Watched] = []

    def make_env(num_envs: int, seed: int) -> sebulba.Env:
        env: Any = make(options.game, num_envs)
        watched.append(Watched(env))
        env.step = watched[-1]
        return env

    config = dataclasses.replace(
        sebulba.presets.get("vtrace-atari-shallow"),
        actors_per_device=1,
        envs_per_actor=options.num_envs,
        batch_size=options.num_envs,
        total_steps=5_000,
    )
    sebulba.train(config, make_env=make_env, progress=False)
    return watched[-1].share()  # The first one only tells its spec.


def timed_inside(env: Any) -> list[Timed]:
    """Time the calls of what the adapter adapts."""
    if hasattr(env, "_pool"):
        holders = [(env._pool, "_send"), (env._pool, "_recv")]
    elif hasattr(env, "_batches"):
        holders = [(batch.env, "step") for batch in env._batches]
    else:
        holders = [(env._env, "step")]
    timed = []
    for holder, name in holders:
        timed.append(Timed(getattr(holder, name)))
        setattr(holder, name, timed[-1])
    return timed


def table(rates: dict[str, list[float]], shares: dict[str, float]) -> str:
    """A row for each way: the median rate, beside EnvPool's, and the adapter's share."""
    median = {name: statistics.median(values) for name, values in rates.items()}
    lines = [
        "| environments | steps/s | beside EnvPool | the adapter's share of its actor's time |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, value in median.items():
        part = f"{shares[name]:.1%}" if name in shares else ""
        lines.append(f"| {name} | {value:,.0f} | {value / median['EnvPool']:.2f} | {part} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(tyro.cli(Options))
