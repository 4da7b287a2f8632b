"""Injects faults into runs, again and again, and says what became of each.

    python benchmarks/soak.py                             all faults, 10 times each: about an hour
    python benchmarks/soak.py --faults kill_anywhere cut_checkpoint --times 2
    python benchmarks/soak.py --table                     the table of docs/reliability.md

Each injection is a function of one of the ``faults*.py``. It starts a run, breaks something, and
checks what happens: an error that says what is wrong, or correct training, and never a wait without
end. It runs in a process of its own, which is killed if it takes longer than ``--limit``: that
counts as a hang.

OUT.json holds every injection. Those that it has already are not repeated, so a campaign that was
ended goes on where it was; ``--again`` starts anew.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faults  # noqa: F401 (Registers them, as do the next four.)
import faults_disk  # noqa: F401
import faults_envs  # noqa: F401
import faults_evaluation  # noqa: F401
import faults_hosts  # noqa: F401
import tyro
from fault import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent
INJECT = "--inject"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


@dataclasses.dataclass(frozen=True)
class Options:
    """Inject faults into runs, and say what became of each."""

    faults: tuple[str, ...] = ()
    """Names of faults; all of them if none is given."""
    times: int | None = None
    """Injections of each fault. None: 10, 3 of those that take long, 20 of kill -9."""
    limit: float = 300.0
    """Seconds that one injection may take before it counts as a hang."""
    at_once: int = 1
    """Injections at the same time."""
    again: bool = False
    """Forget the injections in OUT.json."""
    table: bool = False
    """Only write the table of OUT.json into docs/reliability.md."""
    out: Path = ROOT / "benchmarks" / "results" / "soak.json"


def main(options: Options) -> None:
    """Inject, print a line for each injection, and write OUT.json."""
    unknown = set(options.faults) - set(FAULTS)
    if unknown:
        sys.exit(f"error: unknown faults {sorted(unknown)}; known: {', '.join(FAULTS)}")
    report = _read(options)
    if not options.table:
        _inject_all(options, report)
    if options.table or options.out == Options.out:
        write_table(report["injections"])
    bad = [row for row in report["injections"] if row["outcome"] != "as expected"]
    for row in bad:
        print(f"{row['fault']} {row['number']}: {row['outcome']}\n{row['text']}")
    sys.exit(1 if bad else 0)


def _read(options: Options) -> dict[str, Any]:
    if options.out.exists() and not options.again:
        return dict(json.loads(options.out.read_text()))
    return {"machine": _machine(), "injections": []}


def _machine() -> dict[str, Any]:
    model = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": model[0].split(": ")[1],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _inject_all(options: Options, report: dict[str, Any]) -> None:
    done = {(row["fault"], row["number"]) for row in report["injections"]}
    names = options.faults or tuple(FAULTS)
    # Round by round, so that a campaign that is ended early has seen every fault.
    todo = [
        (FAULTS[name], number)
        for number in range(options.times or max(fault.times for fault in FAULTS.values()))
        for name in names
        if number < (options.times or FAULTS[name].times) and (name, number) not in done
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for row in pool.map(lambda job: inject(*job, options.limit), todo):
            report["injections"].append(row)
            print(
                f"{row['fault']:32} {row['number']:2} {row['seconds']:6.1f} s  {row['outcome']}",
                flush=True,
            )
            options.out.write_text(json.dumps(report, indent=1) + "\n")


def inject(fault: Fault, number: int, limit: float) -> dict[str, Any]:
    """One injection, in a process of its own."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        row = {"fault": fault.name, "number": number, "noticed": None, "lost": None, "text": ""}
        command = [sys.executable, __file__, INJECT, fault.name, str(number)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return row | {
                "outcome": "hang",
                "seconds": limit,
                "text": process.communicate()[0][-4000:],
            }
    seconds = time.monotonic() - start
    if process.returncode:
        return row | {"outcome": "not as expected", "seconds": seconds, "text": text[-4000:]}
    found = json.loads(text.splitlines()[-1])
    return row | found | {"outcome": "as expected", "seconds": seconds}


def inject_here(name: str, number: int) -> None:
    """One injection, in this process and folder; prints the seconds until it was noticed."""
    # Shells have the one ignored in what they start in the background, and nohup the other.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    noticed = FAULTS[name].run(random.Random(f"{name} {number}"))
    print(json.dumps({"noticed": noticed}))


def write_table(injections: list[dict[str, Any]]) -> None:
    """The table of docs/reliability.md: a row for each fault."""
    path = ROOT / "docs" / "reliability.md"
    text = path.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = [
        "| fault | how it is made | what happens | times | seconds to notice | what is lost |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    for fault in FAULTS.values():
        rows = [row for row in injections if row["fault"] == fault.name]
        if rows:
            lines.append(_line(fault, rows))
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def _line(fault: Fault, rows: list[dict[str, Any]]) -> str:
    bad = sum(row["outcome"] != "as expected" for row in rows)
    times = f"{len(rows)}" + (f", of which {bad} otherwise" if bad else "")
    noticed = [row["noticed"] for row in rows if row["noticed"] is not None]
    seconds = f"{statistics.median(noticed):.1f} (most {max(noticed):.1f})" if noticed else ""
    return (
        f"| {fault.title} | {fault.how} | {fault.expected} | {times} | {seconds} | {fault.lost} |"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == [INJECT]:
        inject_here(sys.argv[2], int(sys.argv[3]))
    else:
        main(tyro.cli(Options))
