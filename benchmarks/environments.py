"""Steps every environment of EnvPool, and says which families work.

    python benchmarks/environments.py                          all ids: about an hour on two cores
    python benchmarks/environments.py --families box2d classic_control

Each is played by ``check_env`` with a few steps, in a process that serves many and is started anew
where an environment ends it. OUT.json holds what became of each, OUT.md a row for each family.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import warnings
from collections import defaultdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import tyro

ROOT = Path(__file__).resolve().parent.parent
SERVE = "--serve"
LIMIT_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Options:
    """Step every environment of EnvPool."""

    families: tuple[str, ...] = ()
    """Such as atari or mujoco.gym; all of them if none is given."""
    steps: int = 100
    """Of two environments of each id."""
    processes: int = 2
    out: Path = ROOT / "benchmarks" / "results" / "environments"


def main(options: Options) -> None:
    """Step all of them, and write OUT.json and OUT.md."""
    ids = SimpleQueue[str]()
    families = of_families(options.families)
    for env_id in families:
        ids.put(env_id)
    found: dict[str, dict[str, Any]] = {}
    threads = [
        threading.Thread(target=step_all, args=(ids, options.steps, found))
        for _ in range(options.processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [{"id": env_id, "family": families[env_id], **found[env_id]} for env_id in families]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    options.out.with_suffix(".md").write_text(text)
    print(text)


def of_families(wanted: tuple[str, ...]) -> dict[str, str]:
    """The family of each id, for those that are wanted."""
    from envpool.registration import registry

    families = {
        env_id: path.removeprefix("envpool.") for env_id, (path, *_) in registry.specs.items()
    }
    return {env_id: f for env_id, f in families.items() if not wanted or f in wanted}


def step_all(ids: SimpleQueue[str], steps: int, found: dict[str, dict[str, Any]]) -> None:
    """Give one id after the other to a process, and start another where it ends."""
    server: Server | None = None
    while True:
        try:
            env_id = ids.get_nowait()
        except Empty:
            break
        server = server or Server(steps)
        found[env_id] = server.ask(env_id)
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
        self.process.stdin.write(env_id + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(LIMIT_SECONDS, self.process.kill)
        timer.start()
        answer: dict[str, Any] = {"error": "ended the process"}
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
        answer = {"error": "ended the process", "seeds": None, "renders": False}
        tell(answer, whole=False)
        answer = {**answer, **stepped(line.strip(), steps)}
        if answer["error"] is None:
            tell(answer, whole=False)  # Rendering may end the process.
            answer["renders"] = renders(line.strip())
        tell(answer, whole=True)


def tell(answer: dict[str, Any], whole: bool) -> None:
    print(json.dumps({**answer, "whole": whole}), flush=True)


def stepped(env_id: str, steps: int) -> dict[str, Any]:
    """Whether it works and heeds its seed, and what is said of it."""
    from sebulba import envs

    def make_env(num_envs: int, seed: int) -> Any:
        return envs.make(env_id, num_envs, seed=seed, num_threads=1)

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = envs.check_env(make_env, 2, steps)
    except Exception as error:  # Whatever it is, it is what the table is about.
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    said = [*report.warnings, *(str(w.message) for w in caught)]
    return {
        "error": None,
        "seeds": not any("same for" in text for text in said),
        "said": sorted(set(said)),
    }


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
        "| family | ids | work | other seeds, other episodes | drawn | why others do not work |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- |")
    for family, members in sorted(families.items(), key=lambda item: -len(item[1])):
        working = [row for row in members if row["error"] is None]
        heed = sum(row["seeds"] for row in working)
        drawn = sum(row["renders"] for row in working)
        why = "; ".join(sorted({reason(row) for row in members if row["error"] is not None}))
        lines.append(f"| {family} | {len(members)} | {len(working)} | {heed} | {drawn} | {why} |")
    return "\n".join(lines) + "\n"


def reason(row: dict[str, Any]) -> str:
    """Why it does not work, without its id."""
    text = str(row["error"]).replace(row["id"], "").partition(":")[2].strip() or row["error"]
    return text.partition(", but")[0][:80]


if __name__ == "__main__":
    if SERVE in sys.argv:
        serve(int(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=__doc__))
