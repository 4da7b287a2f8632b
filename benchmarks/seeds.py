"""Trains a preset with several seeds, and says what the worst of them learned.

    python benchmarks/seeds.py vtrace-cartpole --seeds 0 1 2 --at-least 475
    python benchmarks/seeds.py ppo-mujoco -- --env Hopper-v4
    python benchmarks/seeds.py ppo-pong --runs runs/pong0 runs/pong1   trained before, by yourself

Options of the training go after a ``--``. One seed trains after the other, each in a process of its
own; then its policy plays whole games. OUT.json holds the curves and these games' returns, OUT.png
the curves. The exit code is 1 if the mean of a seed's games is below ``--at-least``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro

import sebulba
from sebulba import ConfigError

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = [sys.executable, "-m", "sebulba"]
POINTS = 200
"""Of a curve that are kept."""
_NAMED = 10
"""Seeds that a legend has room for."""
GAMES = 100
"""So many are averaged in the returns of a training's metrics."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Train a preset with several seeds."""

    preset: Annotated[str, tyro.conf.Positional]
    seeds: tuple[int, ...] = (0, 1, 2)
    runs: tuple[Path, ...] = ()
    """Directories of runs that were trained with these options, in place of training ``seeds``."""
    episodes: int = 100
    """Whole games that each trained policy plays."""
    at_least: float | None = None
    """The mean return that each seed must reach in them."""
    reach: tuple[float, ...] = ()
    """Also say when, during training, the mean return of the last 100 games first reached each."""
    out: Path | None = None
    """Without its suffix. None: benchmarks/results/seeds_ and the preset's name, and that of the
    environment if it is another than the preset's."""


def main(options: Options, words: list[str]) -> int:
    """Train, evaluate and draw; 1 if a seed has not learned enough."""
    out = options.out or ROOT / "benchmarks" / "results" / name(options.preset, words)
    command = shlex.join(["sebulba", "train", options.preset, *words])
    result: dict[str, Any] = {"command": command, "episodes": options.episodes, "seeds": []}
    for run in options.runs or trained(options, words):
        result["seeds"].append(measured(options, run))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").write_text(json.dumps(result) + "\n")
        draw(result, out.with_suffix(".png"))
        print(said(result["seeds"][-1]), flush=True)
    worst = min(result["seeds"], key=lambda of_seed: of_seed["return_mean"])
    print(f"the worst: {said(worst)}")
    return int(options.at_least is not None and worst["return_mean"] < options.at_least)


def name(preset: str, words: list[str]) -> str:
    """Of the results."""
    envs = [value for word, value in itertools.pairwise(words) if word == "--env"]
    return re.sub(r"\W+", "_", "_".join(["seeds", preset, *envs]))


def trained(options: Options, words: list[str]) -> Iterator[Path]:
    """The run of each seed, trained here; it is gone when the next one is asked for."""
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            train = [*PROGRAM, "train", options.preset, *words, "--seed", str(seed)]
            quiet = subprocess.DEVNULL
            subprocess.run([*train, "--out", str(run)], check=True, stdout=quiet, stderr=quiet)
            yield run


def measured(options: Options, run: Path) -> dict[str, Any]:
    """The curve of one seed, and the returns of the games that its policy plays."""
    fields = sebulba.load_run(run).fields
    if fields["preset"] != options.preset:
        raise ConfigError(f"{run} is a run of {fields['preset']}: name that preset instead.")
    evaluate = [*PROGRAM, "eval", str(run), "--episodes", str(options.episodes), "--json"]
    played = subprocess.run(evaluate, check=True, capture_output=True, text=True)
    evaluation = json.loads(played.stdout)
    every = sebulba.read_metrics(run)
    rows = [row for row in every if row["episode_return_mean"] is not None]
    step = max(1, len(rows) // POINTS)
    reached = {str(value): first_at(value, every) for value in options.reach}
    kept = rows[step - 1 :: step]
    return {
        "seed": fields["seed"],
        # Of the last row of all, in which no game may have ended.
        "steps": every[-1]["steps"],
        # Of training alone, without what its process needs to begin and to end.
        "seconds": round(every[-1]["seconds"], 1),
        "return_mean": evaluation["mean"],
        "standard_error": evaluation["standard_error"],
        **({"reached": reached, "most": most(every)} if reached else {}),
        "curve": [[row["steps"], row["seconds"], row["episode_return_mean"]] for row in kept],
    }


def of_whole_hundreds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose mean is of 100 games: a training that was resumed begins with none."""
    found, before = [], 0
    for row in rows:
        if row["episode_return_mean_100"] is None:
            before = row["episodes"]
        elif row["episodes"] - before >= GAMES:
            found.append(row)
    return found


def most(rows: list[dict[str, Any]]) -> float | None:
    """The highest mean return of 100 games in training; None if there were fewer."""
    whole = (row["episode_return_mean_100"] for row in of_whole_hundreds(rows))
    return max(whole, default=None)


def first_at(value: float, rows: list[dict[str, Any]]) -> tuple[int, float] | None:
    """Steps and seconds until the mean return of 100 games was at least ``value``."""
    for row in of_whole_hundreds(rows):
        if row["episode_return_mean_100"] >= value:
            return row["steps"], row["seconds"]
    return None


def said(of_seed: dict[str, Any]) -> str:
    """One line about a seed."""
    words = [
        f"seed {of_seed['seed']}: {of_seed['return_mean']:.4g} +- {of_seed['standard_error']:.2g} "
        f"after {of_seed['steps']:,} steps and {of_seed['seconds'] / 60:.1f} minutes"
    ]
    for value, when in of_seed.get("reached", {}).items():
        at = f"after {when[0]:,} steps and {when[1] / 60:.1f} minutes" if when else "not reached"
        words.append(f"{float(value):g} {at}")
    return "; ".join(words)


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves of all seeds, over agent steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for of_seed in result["seeds"]:
        steps, _, returns = zip(*of_seed["curve"], strict=True)
        (line,) = axes.plot(steps, returns, label=f"seed {of_seed['seed']}", linewidth=1)
        axes.plot(of_seed["steps"], of_seed["return_mean"], "o", color=line.get_color())
    axes.set(xlabel="agent steps", ylabel="return", title=textwrap.fill(result["command"], 90))
    axes.title.set_fontsize("small")
    axes.grid(alpha=0.3)
    handles, count = axes.get_legend_handles_labels()[0], len(result["seeds"])
    dots = "dots: games of the trained policy"
    title, shown = (dots, handles) if count <= _NAMED else (f"{count} seeds, {dots}", [])
    axes.legend(handles=shown, title=title, fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = tyro.cli(Options, args=sys.argv[1:cut], description=__doc__)
    sys.exit(main(given, sys.argv[cut + 1 :]))
