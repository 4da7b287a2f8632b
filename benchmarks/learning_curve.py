"""The learning curve of a run directory: its metrics, and evaluations of its checkpoints.

    python benchmarks/learning_curve.py runs/pong --episodes 32 --out benchmarks/results/pong

Copies config.json and metrics.jsonl to the folder --out, plays whole episodes with every
checkpoint that the run kept (train with --checkpoint.keep 1000 to keep all), and draws both over
frames. The actors' returns include those that explore; evaluations are of the policy alone.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import jax
import matplotlib.pyplot as plt
import tyro

import sebulba
from sebulba.checkpoint import Checkpointer
from sebulba.rundir import checkpoint_turns, checkpoints_in


@dataclasses.dataclass(frozen=True)
class Options:
    """What to draw, and where to."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory."""
    out: Path
    """The folder for the results."""
    episodes: int = 32
    """Of each evaluation."""


def evaluations(run: Path, episodes: int, frame_skip: int) -> list[dict[str, Any]]:
    """One for each checkpoint, with the frames behind it."""
    found = []
    for turn in checkpoint_turns(run):
        counts = Checkpointer(checkpoints_in(run)).counts(turn)
        result = sebulba.evaluate_run(run, episodes, checkpoint=turn)
        frames = int(counts["steps"]) * frame_skip
        row = {"frames": frames, "update": result.update, **result.summary()}
        print(f"{frames:12,} frames: {row['mean']:.2f} +- {row['standard_error']:.2f}", flush=True)
        found.append(row)
    return found


def draw(rows: list[Any], evaluated: list[dict[str, Any]], title: str, file: Path) -> None:
    """Returns over millions of frames."""
    key = "episode_return_mean_100"
    rows = [row for row in rows if row.get(key) is not None]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
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


def main(options: Options) -> None:
    """Evaluate, copy and draw."""
    rows = list(sebulba.read_metrics(options.run))
    frame_skip = rows[-1]["frames"] // rows[-1]["steps"]
    evaluated = evaluations(options.run, options.episodes, frame_skip)
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.run / "metrics.jsonl", options.out / "metrics.jsonl")
    config = json.loads((options.run / "config.json").read_text())
    config["out"] = None  # A place on the machine that trained.
    (options.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (options.out / "evaluations.json").write_text(json.dumps(evaluated, indent=1) + "\n")
    title = f"{config['preset']} on {config['env']}"
    draw(rows, evaluated, title, options.out / "curve.png")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(tyro.cli(Options))
