"""What the tests of whole runs share: a tiny config, and parts that count, wait or fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog

from sebulba import (
    Algorithm,
    CheckpointConfig,
    Config,
    EvaluationConfig,
    Learner,
    NetworkConfig,
    OptimizerConfig,
    PPOConfig,
    PQNConfig,
    R2D2Config,
    ReplayConfig,
    Topology,
    VTraceConfig,
    algorithms,
    envs,
)
from sebulba.types import ArraySpec, Env, EnvSpec, Params, Timestep, Unroll

Hook = Callable[["HookedEnv"], None]


def tiny(**changes: Any) -> VTraceConfig:
    """A run of 20 steps an update, of which nothing is learned; ``changes`` replace fields.

    Its learning rate is constant: one that falls with ``total_steps`` would have updates compiled
    anew for each number of steps.
    """
    config = VTraceConfig(
        preset="vtrace-catch",
        env="sebulba/Catch",
        total_steps=200,
        actors_per_device=2,
        envs_per_actor=4,
        batch_size=4,
        unroll_length=5,
        log_every=2,
        network=NetworkConfig(hidden_sizes=(8,)),
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, decay_to_zero=False),
    )
    return dataclasses.replace(config, **changes)


EPISODES = 3
"""Of an evaluation; by this number its environments are told from those of actors."""


def tiny_evaluated(**changes: Any) -> VTraceConfig:
    """``tiny`` with an evaluation after every third turn, and a fixed order of the data."""
    evaluation = EvaluationConfig(interval=60, episodes=EPISODES)
    return tiny(policy_lag="1", evaluation=evaluation, **changes)


def tiny_saved_and_evaluated(out: Path) -> VTraceConfig:
    """The same for four times as long, with checkpoints."""
    saving = CheckpointConfig(interval=5)
    return tiny_evaluated(total_steps=800, log_every=5, checkpoint=saving, out=out)


def tiny_r2d2(**changes: Any) -> R2D2Config:
    """60 steps a turn, one update a turn; without a recurrent core, which takes long to compile.

    ``storage`` and ``samples_per_insert`` are fields of its replay.
    """
    config = R2D2Config(
        env="sebulba/Catch",
        total_steps=1000,
        actors_per_device=2,
        envs_per_actor=12,
        unroll_length=5,
        sequence_length=10,
        burn_in=4,
        n_step=3,
        batch_size=12,
        target_update_period=3,
        log_every=2,
        network=NetworkConfig(hidden_sizes=(8,), core_size=8),
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, decay_to_zero=False),
        replay=ReplayConfig(capacity=120, min_size=48),
    )
    names = {"storage", "samples_per_insert"} & changes.keys()
    replay = {name: changes.pop(name) for name in names}
    changes.setdefault("replay", dataclasses.replace(config.replay, **replay))
    return dataclasses.replace(config, **changes)


def tiny_ppo(**changes: Any) -> PPOConfig:
    """Turns of 20 steps, as those of ``tiny``, in two epochs of two minibatches."""
    config = PPOConfig(**_shared(), num_epochs=2, num_minibatches=2)
    return dataclasses.replace(config, **changes)


def tiny_pqn(**changes: Any) -> PQNConfig:
    """The same for PQN, whose exploration falls in the first half of a run."""
    config = PQNConfig(**_shared(), num_minibatches=2, exploration_fraction=0.5)
    return dataclasses.replace(config, **changes)


def _shared() -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(Config)} - {"preset"}
    return {name: getattr(tiny(), name) for name in names}


def on(num_devices: int, num_inference: int | None = None) -> Topology:
    """The first ``num_devices`` devices."""
    return Topology.split(num_inference, devices=jax.devices()[:num_devices])


class HookedEnv:
    """Catch that calls ``on_reset`` and ``on_step`` first, and counts.

    Attributes:
      actor: number of this environment's actor thread; -1 for the probe of the spec.
      resets, steps: calls so far, the present one included.
      firsts: auto-resets in each call of ``step``.
    """

    def __init__(self, num_envs: int, seed: int, actor: int, on_reset: Hook, on_step: Hook) -> None:
        self._env = envs.Catch(num_envs, seed)
        self._on_reset, self._on_step = on_reset, on_step
        self.actor, self.seed = actor, seed
        self.steps = self.resets = 0
        self.firsts: list[int] = []
        self.closed = False

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    def reset(self) -> Timestep:
        self.resets += 1
        self._on_reset(self)
        return self._env.reset()

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self.steps += 1
        self._on_step(self)
        timestep = self._env.step(action)
        self.firsts.append(int(timestep.first.sum()))
        return timestep

    def close(self) -> None:
        self.closed = True


class Pictures(envs.Catch):
    """Catch as pictures of 40 x 40 pixels."""

    @property
    def spec(self) -> EnvSpec:
        return super().spec._replace(observation=ArraySpec((40, 40, 1), np.dtype(np.uint8)))

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        timestep = super().step(action)
        pixels = np.kron(timestep.observation, np.full((1, 4, 8), 255)).astype(np.uint8)
        return timestep._replace(observation=pixels[..., None])


class HookedEnvs:
    """A ``make_env`` of ``HookedEnv``, which keeps those it made for actors in ``made``."""

    def __init__(self, on_step: Hook | None = None, on_reset: Hook | None = None) -> None:
        self._on_step = on_step or _nothing
        self._on_reset = on_reset or _nothing
        self.made: list[HookedEnv] = []

    def __call__(self, num_envs: int, seed: int) -> Env:
        is_probe = num_envs == 1
        actor = -1 if is_probe else len(self.made)
        env = HookedEnv(num_envs, seed, actor, self._on_reset, self._on_step)
        if not is_probe:
            self.made.append(env)
        return env


def _nothing(env: HookedEnv) -> None:
    pass


class HookedLearner(Learner):
    """Any learner, with ``before_update(k)`` called before update k, counted from 0 in this run."""

    def __init__(self, learner: Learner, before_update: Callable[[int], None]) -> None:
        self._learner = learner
        self._before_update = before_update
        self._updates = 0

    def init(self, key: jax.Array) -> Any:
        return self._learner.init(key)

    def params(self, state: Any) -> Params:
        return self._learner.params(state)

    def add(self, unrolls: Sequence[Unroll]) -> int:
        return self._learner.add(unrolls)

    def update(self, state: Any, progress: float) -> tuple[Any, dict[str, jax.Array]]:
        self._before_update(self._updates)
        self._updates += 1
        return self._learner.update(state, progress)

    def prepare(self) -> str | None:
        return self._learner.prepare()

    def metrics(self) -> dict[str, float]:
        return self._learner.metrics()

    def save_replay(self, path: Path) -> None:
        self._learner.save_replay(path)

    def load_replay(self, path: Path) -> str | None:
        return self._learner.load_replay(path)

    def close(self) -> None:
        self._learner.close()


def hooked_learner(
    before_update: Callable[[int], None], algorithm: Algorithm[Any] = algorithms.VTRACE
) -> Algorithm[Any]:
    """``algorithm`` with a ``HookedLearner`` around its learner."""

    def make_learner(*parts: Any) -> HookedLearner:
        return HookedLearner(algorithm.make_learner(*parts), before_update)

    return dataclasses.replace(algorithm, make_learner=make_learner)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, read without the package."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tensorboard_events(directory: Path) -> list[Event]:
    """All events in the files of TensorBoard, oldest first."""
    events = []
    for path in sorted((directory / "tensorboard").iterdir(), key=lambda p: p.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            events.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return events


def tensorboard_steps(directory: Path) -> list[int]:
    """The steps of the events that TensorBoard shows, by its rules for runs that start again."""
    steps: list[int] = []
    for event in tensorboard_events(directory):
        if event.session_log.status == SessionLog.START:
            steps = [step for step in steps if step < event.step]
        elif event.HasField("summary"):
            steps.append(event.step)
    return steps


def assert_same(left: Any, right: Any) -> None:
    """Two pytrees of arrays are bit-identical."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
