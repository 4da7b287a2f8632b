"""Steps every environment of EnvPool, and says which families work.

    python benchmarks/environments.py                          all ids: about an hour on two cores
    python benchmarks/environments.py --families box2d classic_control
    python benchmarks/environments.py --redraw                 the table of what was found before

Each is played for a few steps with the checks of training, in a process that serves many and is
started anew where an environment ends it. OUT.json holds what became of each, OUT.md a row for each
family, with the preset to start from and what the worst of the seeds learned (by ``seeds.py``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import re
import subprocess
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import tyro

from sebulba import presets
from sebulba.envs.check import random_action
from sebulba.envs.contract import TimestepCheck

ROOT = Path(__file__).resolve().parent.parent
SERVE = "--serve"
LIMIT_SECONDS = 120.0
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
    if not options.redraw:
        rows = step_families(options, {row["id"]: row for row in known})
        options.out.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(rows, indent=1) + "\n")
    text = table(json.loads(results.read_text()))
    options.out.with_suffix(".md").write_text(text)
    print(text)


def step_families(options: Options, known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What became of each id, and of those that are ``known``."""
    ids = SimpleQueue[str]()
    families = of_families()
    for env_id, family in families.items():
        wanted = not options.families or family in options.families
        if wanted and not (env_id in known and is_fine(known[env_id])):
            ids.put(env_id)
    found = dict(known)
    threads = [
        threading.Thread(target=step_all, args=(ids, options.steps, found))
        for _ in range(options.processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [
        {**found[env_id], "id": env_id, "family": family}
        for env_id, family in families.items()
        if env_id in found
    ]


def is_fine(row: dict[str, Any]) -> bool:
    """Whether nothing is left to be asked."""
    return row["error"] is None and row["seeds"]


def of_families() -> dict[str, str]:
    """The family of each id."""
    from envpool.registration import registry

    return {env_id: path.removeprefix("envpool.") for env_id, (path, *_) in registry.specs.items()}


def step_all(ids: SimpleQueue[str], steps: int, found: dict[str, dict[str, Any]]) -> None:
    """Give one id after the other to a process, and start another where it ends."""
    server: Server | None = None
    while True:
        try:
            env_id = ids.get_nowait()
        except Empty:
            break
        answer = server.ask(env_id) if server is not None else None
        if answer is None or answer["error"] == ENDED:
            # In a process of its own: drawing another one may have broken the last.
            server = Server(steps)
            answer = server.ask(env_id)
        found[env_id] = answer
        print(
            f"{len(found):5} {env_id:45} {found[env_id].get('error') or 'works'}"[:140], flush=True
        )
        if server.process.poll() is not None:
            server = None
    if server is not None:
        server.process.kill()


class Server:
    """A process that steps the environments whose ids it is sent."""

    def __init__(self, steps: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, SERVE, str(steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, env_id: str) -> dict[str, Any]:
        """What became of it: the last line that the process wrote of it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        answer: dict[str, Any] = {"error": ENDED}
        try:
            self.process.stdin.write(env_id + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return answer
        timer = threading.Timer(LIMIT_SECONDS, self.process.kill)
        timer.start()
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if answer.pop("whole"):
                    break
        timer.cancel()
        return answer


def serve(steps: int) -> None:
    """Step the environments whose ids arrive; write what is known before each risk."""
    for line in sys.stdin:
        answer = {"error": ENDED, "seeds": None, "renders": False}
        tell(answer, whole=False)
        answer = {**answer, **stepped(line.strip(), steps)}
        if answer["error"] is None:
            tell(answer, whole=False)  # Rendering may end the process.
            answer["renders"] = renders(line.strip())
        tell(answer, whole=True)


def tell(answer: dict[str, Any], whole: bool) -> None:
    print(json.dumps({**answer, "whole": whole}), flush=True)


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
        "| family | ids | accepted | seeds respected | drawn | system library | preset | learned | "
        "why others are not accepted |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- | --- |",
    ]
    learned = what_was_learned()
    for family, members in sorted(families.items(), key=lambda item: -len(item[1])):
        working = [row for row in members if row["error"] is None]
        heed = sum(row["seeds"] for row in working)
        drawn = sum(row["renders"] for row in working)
        why = "; ".join(sorted({reason(row) for row in members if row["error"] is not None}))
        of_ids = [text for row in members for text in learned.get(row["id"], [])]
        cells = [
            *(family, len(members), len(working), heed, drawn, LIBRARIES.get(family, "none")),
            *(f"`{PRESETS.get(family, GENERIC)}`", "; ".join(of_ids), why),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def what_was_learned() -> dict[str, list[str]]:
    """By id: the return of the worst seed, the steps and the minutes, of each committed result."""
    learned = defaultdict(list)
    for path in sorted((ROOT / "benchmarks" / "results").glob("seeds_*.json")):
        result = json.loads(path.read_text())
        words = result["command"].split()
        env_id = words[words.index("--env") + 1] if "--env" in words else presets.get(words[2]).env
        worst = min(result["seeds"], key=lambda of_seed: of_seed["return_mean"])
        learned[env_id].append(
            f"{env_id}: {worst['return_mean']:.4g} after {worst['steps'] / 1e6:.2g} million steps "
            f"({worst['seconds'] / 60:.0f} min, `{words[2]}`)"
        )
    return learned


def reason(row: dict[str, Any]) -> str:
    """Why it does not work, without its id."""
    text = str(row["error"]).replace(row["id"], "").partition(":")[2].strip() or row["error"]
    return text.partition(", but")[0][:80]


if __name__ == "__main__":
    if SERVE in sys.argv:
        serve(int(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=__doc__))
