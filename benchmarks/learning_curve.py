"""The learning curve of a run directory: its metrics, and evaluations of its checkpoints.

    python benchmarks/learning_curve.py runs/pong --episodes 32 --out benchmarks/results/pong
    python benchmarks/learning_curve.py DIR --out DIR --checkpoints 0

Copies config.json and metrics.jsonl to the folder --out, plays whole episodes with some of the
checkpoints that the run kept (train with --checkpoint.max-to-keep 1000 to keep all), and draws both
over frames. The actors' returns include those that explore; evaluations are of the policy alone.

The last checkpoint comes first, and evaluations.json is written after each, so that Ctrl-C and the
end of --seconds leave a coarser curve. The second command draws what such a folder holds.

Evaluations run on JAX's default device; beside a training, set JAX_PLATFORMS=cpu.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

import sebulba
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoint_turns, checkpoints_in, load_config
from sebulba.runners.environments import default_make_env, probe
from sebulba.validation import ConfigError

Evaluated = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Options:
    """What to draw, and where to."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory."""
    out: Path
    """The folder for the results."""
    episodes: int = 32
    """Of each evaluation."""
    checkpoints: int = 16
    """To evaluate, evenly spaced; 0: none, but draw the evaluations that --out holds."""
    seconds: float = 900.0
    """After which no further evaluation starts."""


def main(options: Options) -> int:
    """Copy, evaluate and draw: what there is, whatever fails on the way; 1 where not all was."""
    config = load_config(options.run)
    rows = list(sebulba.read_metrics(options.run))
    copy(options.run, options.out)
    file = options.out / "evaluations.json"
    before = not options.checkpoints and file.exists()
    found: Evaluated = json.loads(file.read_text()) if before else []
    wanted: list[int] = []
    try:
        wanted = chosen(options)
        for row in evaluations(options, wanted):
            found = sorted([*found, row], key=lambda each: each["frames"])
            file.write_text(json.dumps(found, indent=1) + "\n")
    except KeyboardInterrupt:
        print("interrupted: drawing the evaluations there are")
    finally:
        draw(rows, found, f"{config.preset} on {config.env}", options.out / "curve.png")
    return int(len(found) < len(wanted))


def chosen(options: Options) -> list[int]:
    """The checkpoints to evaluate, in order."""
    if not options.checkpoints:
        return []
    return spread(checkpoint_turns(options.run), options.checkpoints)


def copy(run: Path, out: Path) -> None:
    """config.json and metrics.jsonl; ``out`` may be ``run``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text())
    config = json.loads((run / "config.json").read_text())
    config["out"] = None  # A place on the machine that trained.
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def evaluations(options: Options, turns: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One for each checkpoint, with the frames behind it."""
    if not turns:
        return
    start = time.monotonic()
    checkpoints = Checkpointer(checkpoints_in(options.run))
    frame_skip = probe(default_make_env(load_config(options.run))).frame_skip
    for number, turn in enumerate(turns):
        if time.monotonic() - start > options.seconds:
            print(f"{options.seconds:g} s are over: {len(turns) - number} evaluations left out")
            return
        result = sebulba.evaluate_run(options.run, options.episodes, checkpoint=turn)
        frames = int(checkpoints.counts(turn)["steps"]) * frame_skip
        row = {"frames": frames, "update": result.update, **result.summary()}
        print(f"{frames:12,} frames: {row['mean']:.2f} +- {row['standard_error']:.2f}", flush=True)
        yield row


def spread(turns: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of ``turns``, evenly spaced; the last first, and every start is coarser."""
    places = np.linspace(len(turns) - 1, 0, min(count, len(turns))).round().astype(int)
    chosen = [turns[place] for place in places]
    strides = [2**power for power in reversed(range(len(chosen).bit_length()))]
    return list(dict.fromkeys(turn for stride in strides for turn in chosen[::stride]))


def draw(rows: list[Any], evaluated: Evaluated, title: str, file: Path) -> None:
    """Returns over millions of frames."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        folder = file.parent
        print(
            f"no plot, since {error.name} is not installed: draw it elsewhere with: python "
            f"benchmarks/learning_curve.py {folder} --out {folder} --checkpoints 0"
        )
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    key = "episode_return_mean_100"
    rows = [row for row in rows if row.get(key) is not None]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(
        [row["frames"] / 1e6 for row in rows],
        [row[key] for row in rows],
        label="actors, last 100 episodes",
        color="tab:blue",
    )
    axes.errorbar(
        [row["frames"] / 1e6 for row in evaluated],
        [row["mean"] for row in evaluated],
        [row["standard_error"] for row in evaluated],
        label="evaluation, with its standard error",
        color="tab:orange",
        marker="o",
        capsize=3,
    )
    axes.set(xlabel="million frames", ylabel="return of an episode", title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options)))
    except ConfigError as error:
        sys.exit(f"error: {error}")
