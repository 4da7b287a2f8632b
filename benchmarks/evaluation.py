"""What evaluation during training costs: presets trained without and with it, in turns.

    python benchmarks/evaluation.py

OUT.json holds every training, OUT.md the medians.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import throughput_report
import tyro

import sebulba

RESULTS = Path(__file__).resolve().parent / "results"


@dataclasses.dataclass(frozen=True)
class Options:
    """What evaluation during training costs."""

    presets: tuple[str, ...] = ("vtrace-cartpole", "r2d2-catch")
    count: int = 10
    """Evaluations in each training, evenly spaced."""
    repeats: int = 2
    """Trainings of each kind."""
    out: Path = RESULTS / "evaluation"
    """Files to write, without their suffix."""


def main(words: Sequence[str]) -> None:
    """Train, print, and write OUT.json and OUT.md."""
    options = tyro.cli(Options, args=words)
    report: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/evaluation.py", *words]),
        "machine": throughput_report.machine(),
        "trainings": [],
    }
    for number in range(options.repeats):
        for preset in options.presets:
            for evaluates in (False, True):
                row = train(preset, options.count if evaluates else 0, number)
                report["trainings"].append(row)
                print(row, flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                Path(f"{options.out}.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(f"{options.out}.md").write_text(table(report) + "\n")
    print(table(report))


def train(preset: str, count: int, seed: int) -> dict[str, Any]:
    """One training with so many evaluations; its speed is that between its second and last row."""
    config = sebulba.presets.get(preset)
    interval = config.total_steps // count if count else 0
    evaluation = sebulba.EvaluationConfig(interval=interval)
    config = dataclasses.replace(config, evaluation=evaluation, seed=seed)
    rows = sebulba.train(config, progress=False).metrics
    found = [row for row in rows if "evaluation_update" in row]
    trained = [row for row in rows if row not in found[-1:]]
    begin, end = trained[1], trained[-1]
    return {
        "preset": preset,
        "evaluations": len(found),
        "steps_per_second": (end["steps"] - begin["steps"]) / (end["seconds"] - begin["seconds"]),
        "evaluation_seconds": [row["evaluation_duration_seconds"] for row in found],
        "returns": [row["evaluation_return_mean"] for row in found],
    }


def table(report: dict[str, Any]) -> str:
    """The medians, in Markdown."""
    on = report["machine"]
    lines = [
        "# Evaluation during training",
        "",
        f"`{report['command']}`",
        "",
        f"{on['date']}; {on['cpus_to_use']} cores ({on['cpu']}); jax {on['jax']}, sebulba "
        f"{on['sebulba']} ({on['git']}). Each evaluation plays 32 episodes. Agent steps/s of whole "
        "trainings, median (least to most).",
        "",
        "| preset | steps/s without | steps/s with | evaluations | seconds of one | last return |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for preset in dict.fromkeys(row["preset"] for row in report["trainings"]):
        rows = [row for row in report["trainings"] if row["preset"] == preset]
        without, with_it = ([row for row in rows if bool(row["evaluations"]) == k] for k in (0, 1))
        seconds = [each for row in with_it for each in row["evaluation_seconds"]]
        last = ", ".join(f"{row['returns'][-1]:.4g}" for row in with_it)
        lines.append(
            f"| {preset} | {_speed(without)} | {_speed(with_it)} | {with_it[0]['evaluations']} "
            f"| {statistics.median(seconds):.2f} (most {max(seconds):.2f}) | {last} |"
        )
    return "\n".join(lines)


def _speed(rows: Sequence[dict[str, Any]]) -> str:
    rates = [row["steps_per_second"] for row in rows]
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


if __name__ == "__main__":
    main(sys.argv[1:])
