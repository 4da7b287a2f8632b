"""The memory of a training over time: it must not grow once everything has been allocated.

    python benchmarks/memory.py vtrace-catch r2d2-catch --minutes 31

Each preset trains in a process of its own, all at the same time; options for all of them go after
a --. OUT.json holds the memory every ten seconds, OUT.md the growth since minute 5.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

ROOT = Path(__file__).resolve().parent.parent
SETTLED_MINUTES = 5.0
EVERY_SECONDS = 10.0
ENDLESS = ("--total-steps", "1000000000000")
# So that the replay is full within the first minutes.
REPLAY = ("--replay.capacity", "20000", "--checkpoint.save-replay")


@dataclasses.dataclass(frozen=True)
class Options:
    """Watch the memory of trainings."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = ("vtrace-catch", "r2d2-catch")
    minutes: float = 31.0
    """How long to watch."""
    out: Path = ROOT / "benchmarks" / "results" / "memory"


def main(options: Options, words: list[str]) -> None:
    """Train, watch, and write OUT.json and OUT.md."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = {preset: start(preset, words, Path(scratch)) for preset in options.presets}
        rows = watch(runs, options.minutes)
        for process in runs.values():
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(120) for process in runs.values()]
    assert set(codes) == {130}, codes
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    options.out.with_suffix(".md").write_text(text)
    print(text)


def start(preset: str, words: list[str], scratch: Path) -> subprocess.Popen[bytes]:
    """A training without an end of its own."""
    more = REPLAY if preset.startswith("r2d2") else ()
    command = [sys.executable, "-m", "sebulba", "train", preset, *ENDLESS, *more, *words]
    output = (scratch / f"{preset}.txt").open("w")
    return subprocess.Popen(
        [*command, "--out", str(scratch / preset)], cwd=ROOT, stdout=output, stderr=output
    )


def watch(runs: dict[str, subprocess.Popen[bytes]], minutes: float) -> list[dict[str, Any]]:
    """MiB of each process, every ten seconds."""
    started, rows = time.monotonic(), []
    while time.monotonic() - started < minutes * 60:
        time.sleep(EVERY_SECONDS)
        passed = (time.monotonic() - started) / 60
        rows.append({"minute": round(passed, 2), **{n: held(p) for n, p in runs.items()}})
    return rows


def held(process: subprocess.Popen[bytes]) -> float:
    """MiB of its own that a process holds, without the files that it has mapped."""
    assert process.poll() is None, f"ended with {process.returncode}"
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    # The system drops pages of files, such as the code of libraries, and reads them again.
    kinds = [line for line in lines if line.startswith(("RssAnon", "VmSwap"))]
    return round(sum(int(line.split()[1]) for line in kinds) / 1024, 1)


def table(rows: list[dict[str, Any]]) -> str:
    """The memory after five minutes and at the end, each the median of a minute."""
    lines = ["| preset | MiB after 5 min | at the end | growth |", "| --- | ---: | ---: | ---: |"]
    for preset in list(rows[0])[1:]:
        before = median(preset, rows, SETTLED_MINUTES)
        after = median(preset, rows, rows[-1]["minute"])
        growth = after / before - 1
        lines.append(f"| `{preset}` | {before:,.0f} | {after:,.0f} | {growth:+.1%} |")
    return "\n".join(lines) + "\n"


def median(preset: str, rows: list[dict[str, Any]], minute: float) -> float:
    """Of the minute before ``minute``."""
    near = sorted(row[preset] for row in rows if minute - 1 <= row["minute"] <= minute)
    return float(near[len(near) // 2])


if __name__ == "__main__":
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    main(tyro.cli(Options, args=given[:split]), given[split + 1 :])
