"""Steps every environment of EnvPool, and says which families work.

    python benchmarks/environments.py                          all ids: some minutes
    python benchmarks/environments.py --families box2d classic_control
    python benchmarks/environments.py --redraw                 the table of what was found before

Each is played for a few steps with the checks of training, in a process of its own. OUT.json holds
what became of each, OUT.md a row for each family, with the preset to start from and what the worst
of the seeds learned (by ``seeds.py``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import pickle
import re
import signal
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from sebulba import presets
from sebulba.envs.check import random_action
from sebulba.envs.contract import TimestepCheck

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 120
ENDED = "ended the process"
LEAST_STEPS = 40
PRESETS = {
    "atari": "vtrace-atari",
    "gfootball": "vtrace-football",
    "vizdoom": "vtrace-vizdoom",
    "procgen": "vtrace-procgen",
    "minigrid": "vtrace-minigrid",
    "box2d": "ppo-lunarlander",
    "classic_control": "vtrace-cartpole",
    **{f"mujoco.{kind}": "ppo-mujoco" for kind in ("gym", "dmc", "metaworld", "playground")},
    **{f"mujoco.{kind}": "ppo-mujoco" for kind in ("robotics", "myosuite")},
}
"""To start from; in the other families, the last one."""
GENERIC = "vtrace-generic"
NAMES = {
    "atari": "Atari",
    "gfootball": "Google Research Football",
    "vizdoom": "ViZDoom",
    "procgen": "Procgen",
    "minigrid": "MiniGrid, BabyAI",
    "box2d": "Box2D",
    "classic_control": "classic control",
    "toy_text": "toy text",
    "jumanji": "Jumanji",
    "pgx": "PGX",
    "mujoco.gym": "MuJoCo: Gymnasium's tasks",
    "mujoco.dmc": "MuJoCo: DM Control",
    "mujoco.metaworld": "MuJoCo: MetaWorld",
    "mujoco.playground": "MuJoCo: Playground",
    "mujoco.robotics": "MuJoCo: robotics",
    "mujoco.myosuite": "MuJoCo: MyoSuite",
}
LIBRARIES = {"procgen": "Qt 5 (Debian: libqt5gui5)"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Step every environment of EnvPool."""

    families: tuple[str, ...] = ()
    """Such as atari or mujoco.gym; all of them if none is given."""
    steps: int = 400
    """At most, of two environments of each id."""
    processes: int = 2
    retry: bool = False
    """Only step again what is not accepted, or seems to ignore its seed, in OUT.json."""
    redraw: bool = False
    """Only write OUT.md again."""
    out: Path = ROOT / "benchmarks" / "results" / "environments"


def main(options: Options) -> None:
    """Step all of them, and write OUT.json and OUT.md."""
    results = options.out.with_suffix(".json")
    known = json.loads(results.read_text()) if options.retry else []
    found = {row["id"]: row for row in known}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    families = of_families()
    # The largest last, and what is known is written after each.
    for family, _ in reversed(Counter(families.values()).most_common()):
        if not options.redraw and (not options.families or family in options.families):
            members = [env_id for env_id in families if families[env_id] == family]
            wanted = [env_id for env_id in members if not is_fine(found.get(env_id))]
            for env_id, row in step_all(wanted, options).items():
                found[env_id] = {**row, "id": env_id, "family": family}
            rows = [found[env_id] for env_id in families if env_id in found]
            results.write_text(json.dumps(rows, indent=1) + "\n")
    text = table(json.loads(results.read_text()))
    options.out.with_suffix(".md").write_text(text)
    print(text)


def is_fine(row: dict[str, Any] | None) -> bool:
    """Whether nothing is left to be asked."""
    return row is not None and row["error"] is None and row["seeds"]


def of_families() -> dict[str, str]:
    """The family of each id."""
    from envpool.registration import registry

    return {env_id: path.removeprefix("envpool.") for env_id, (path, *_) in registry.specs.items()}


def step_all(ids: list[str], options: Options) -> dict[str, dict[str, Any]]:
    """What became of each id, in a process of its own: what one breaks does not reach the next."""
    # Forked, so that nothing is imported a thousand times. Nothing has started a thread yet.
    fork = multiprocessing.get_context("fork")
    waiting, running = list(reversed(ids)), dict[Connection, str]()
    found: dict[str, dict[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < options.processes:
            ours, theirs = fork.Pipe(duplex=False)
            env_id = waiting.pop()
            fork.Process(target=step_one, args=(env_id, options.steps, theirs)).start()
            theirs.close()
            running[ours] = env_id
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            try:
                found[running[pipe]] = pipe.recv()
            except EOFError:
                env_id = running.pop(pipe)
                what = found[env_id]["error"] or "works"
                print(f"{len(found):5} {env_id:45} {what}"[:140], flush=True)
                pipe.close()
    return found


def step_one(env_id: str, steps: int, answers: Connection) -> None:
    """Step one environment; send what is known before each risk."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.chdir(tempfile.gettempdir())  # MuJoCo writes its warnings where it runs.
    signal.alarm(LIMIT_SECONDS)  # It ends the process, whatever native code is doing.
    answer: dict[str, Any] = {"error": ENDED, "seeds": None, "renders": False}
    answers.send(answer)
    answer |= stepped(env_id, steps)
    answers.send(answer)
    if answer["error"] is None:
        answers.send({**answer, "renders": renders(env_id)})


def stepped(env_id: str, steps: int) -> dict[str, Any]:
    """Whether it works, and whether it plays otherwise with another seed."""
    try:
        return {"error": None, "seeds": heeds_seed(env_id, steps)}
    except Exception as error:  # Whatever it is, it is what the table is about.
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"error": re.sub(r"\S*/site-packages/", "", text)}


def heeds_seed(env_id: str, steps: int) -> bool:
    """Whether the same actions come to something else with two seeds, at last after ``steps``.

    What the environments return is checked as in training, in at least 40 steps.
    """
    plays = zip(played(env_id, 0), played(env_id, 1), strict=True)
    differs = False
    for number, (one, other) in enumerate(itertools.islice(plays, steps)):
        differs = differs or one != other
        if differs and number >= LEAST_STEPS:
            break
    return differs


def played(env_id: str, seed: int) -> Iterator[bytes]:
    """What two environments return in each step, without an end."""
    from sebulba import envs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = envs.make(env_id, 2, seed=seed, num_threads=1)
    try:
        check, rng = TimestepCheck(env.spec), np.random.default_rng(0)
        check.reset(env.reset())
        while True:
            timestep = env.step(random_action(rng, env.spec))
            check.step(timestep)
            yield pickle.dumps(timestep)
    finally:
        env.close()


def renders(env_id: str) -> bool:
    """Whether EnvPool draws it."""
    import envpool

    try:
        pool: Any = envpool.make_gymnasium(env_id, num_envs=1, render_mode="rgb_array")
        pool.reset()
        return getattr(pool.render(), "ndim", 0) == 4
    except Exception:
        return False


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each family."""
    families = defaultdict(list)
    for row in rows:
        families[row["family"]].append(row)
    lines = [
        "| family | ids | accepted | differ with the seed | can be drawn | system library "
        "| start from | learned, with the worst of the seeds |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    learned = what_was_learned()
    for family, members in sorted(families.items(), key=lambda item: -len(item[1])):
        working = [row for row in members if row["error"] is None]
        differ = sum(row["seeds"] for row in working)
        drawn = sum(row["renders"] for row in working)
        of_ids = [learned[row["id"]] for row in members if row["id"] in learned]
        cells = [
            *(NAMES.get(family, family), len(members), len(working), differ, drawn),
            *(LIBRARIES.get(family, "none"), f"`{PRESETS.get(family, GENERIC)}`"),
            "; ".join(of_ids),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def what_was_learned() -> dict[str, str]:
    """By id: the worst seed of the preset whose worst seed is best, of the committed results."""
    best: dict[str, tuple[float, float, str]] = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("seeds_*.json")):
        result = json.loads(path.read_text())
        if len(result["seeds"]) < 3:
            continue
        words = result["command"].split()
        env_id = words[words.index("--env") + 1] if "--env" in words else presets.get(words[2]).env
        worst = min(result["seeds"], key=lambda of_seed: of_seed["return_mean"])
        mean, minutes = worst["return_mean"], worst["seconds"] / 60
        text = (
            f"{env_id.rpartition('/')[2]}: {mean:{',.0f' if abs(mean) >= 100 else '.2f'}} after "
            f"{worst['steps'] / 1e6:.2g} million steps, {minutes:.0f} min (`{words[2]}`)"
        )
        found = (mean, -minutes, text)
        best[env_id] = max(found, best.get(env_id, found))
    return {env_id: text for env_id, (_, _, text) in best.items()}


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
