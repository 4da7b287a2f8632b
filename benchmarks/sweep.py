"""Agent steps/s of training for several values of one option of the config.

    python benchmarks/sweep.py vtrace-atari-shallow actors-per-device 1 2 4 8
    python benchmarks/sweep.py vtrace-cartpole queue-size 1 2 4 -- --envs-per-actor 256

Options of the preset's config go after a ``--``. Training is measured as in throughput.py, with one
value after the other, and all of them again in every repeat, so that the drift of the machine
meets all. Beside the steps/s stand how old the actors' parameters were (in turns), and what share
of their time the actors spent on each thing.

OUT.json holds every repeat, OUT.md the medians.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import throughput
import throughput_parts
import throughput_report
import tyro

from sebulba import presets
from sebulba.cli.train import parse
from sebulba.config import to_json

RESULTS = Path(__file__).resolve().parent / "results"
SHARES = ("actor_environment", "actor_act", "actor_queue_wait", "actor_params_wait")


@dataclasses.dataclass(frozen=True)
class Options:
    """Agent steps/s of training for several values of one option."""

    preset: Annotated[str, tyro.conf.Positional]
    option: Annotated[str, tyro.conf.Positional]
    """Of the preset's config, as on the command line but without its dashes."""
    values: Annotated[tuple[str, ...], tyro.conf.Positional]
    repeats: int = 5
    """Times that all values are measured in turn."""
    seconds: float = 5.0
    """Of each measurement."""
    out: Path | None = None
    """Files to write, without their suffix; None: benchmarks/results/sweep_PRESET_OPTION."""


def main(words: Sequence[str]) -> None:
    """Measure, print, and write OUT.json and OUT.md."""
    options, rest = throughput.read(Options, words)
    name = f"sweep_{options.preset}_{options.option}".replace("-", "_")
    out = options.out or RESULTS / name
    report: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/sweep.py", *words]),
        "machine": throughput_report.machine(),
        "option": options.option,
    }
    with tempfile.TemporaryDirectory() as scratch:
        throughput.keep_compilations(Path(scratch))
        measure(options, rest, report, out)
    print(table(report))


def measure(options: Options, words: Sequence[str], report: dict[str, Any], out: Path) -> None:
    """Every value in turn, again and again."""
    trainings = {}
    for value in options.values:
        chosen = [*words, f"--{options.option}", value]
        setup = throughput_parts.prepare(parse(presets.get(options.preset), chosen).config)
        trainings[value] = throughput_parts.training(setup)
    report["config"] = json.loads(to_json(setup.config, setup.algorithm.name))
    report["layout"] = str(setup.topology)
    report["repeats"] = []
    for number in range(options.repeats):
        rows = {value: training(options.seconds) for value, training in trainings.items()}
        report["repeats"].append(rows)
        shown = "  ".join(f"{value}: {row['steps_per_second']:,.0f}" for value, row in rows.items())
        print(f"repeat {number + 1}  {shown}  steps/s", flush=True)
        report["machine"]["load_at_end"] = os.getloadavg()
        out.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{out}.json").write_text(json.dumps(report, indent=1) + "\n")
        Path(f"{out}.md").write_text(table(report) + "\n")


def table(report: dict[str, Any]) -> str:
    """The medians, in Markdown."""
    on, config, option = report["machine"], report["config"], report["option"]
    titles = [share.removeprefix("actor_").replace("_", " ") for share in SHARES]
    lines = [
        f"# {option}: {config['preset']}, {config['env']}",
        "",
        f"`{report['command']}`",
        "",
        f"{on['date']}; {on['cpus_to_use']} cores ({on['cpu']}); {report['layout']}; "
        f"jax {on['jax']}, envpool {on['envpool']}, sebulba {on['sebulba']} ({on['git']}). "
        f"Training, agent steps/s, median of {len(report['repeats'])} (least to most); lag in "
        "turns; shares of an actor's time.",
        "",
        f"| {option} | steps/s | lag | {' | '.join(titles)} |",
        f"|---|---:|---:|{'---:|' * len(titles)}",
    ]
    for value in report["repeats"][0]:
        rows = [repeat[value] for repeat in report["repeats"]]
        rates = [row["steps_per_second"] for row in rows]
        lag = statistics.median(row["policy_lag"] for row in rows)
        shares = (statistics.median(row["shares"][s] for row in rows) for s in SHARES)
        lines.append(
            f"| {value} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) "
            f"| {lag:.1f} | {' | '.join(f'{share:.0%}' for share in shares)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
