"""``sebulba runs``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from sebulba.cli import options, output

if TYPE_CHECKING:
    from sebulba.rundir.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Where the runs are."""
    aggregate: bool = False
    """Also aggregate the scores of each setting over seeds and games, with 95% confidence
    intervals: interquartile mean, median, mean, and optimality gap (Agarwal et al. 2021)."""
    metric: str | None = None
    """What to aggregate, a name of docs/metrics.md. None: the human-normalized score of the last
    evaluation during training, or its return if all runs are of one environment."""


def run(words: Sequence[str]) -> None:
    """List the runs in a directory: how far they are, how well they do, and how they differ."""
    given = options.parse(Options(), words, "sebulba runs", run.__doc__)

    from sebulba.rundir.run import find_runs

    found = find_runs(given.directory)
    show(found, given.directory)
    if given.aggregate:
        _show_aggregates(found, given.metric)


def _show_aggregates(runs: Sequence[Run], metric: str | None) -> None:
    from sebulba.rundir.run import aggregate

    groups = aggregate(runs, metric)
    (name,) = {each.metric for each in groups.values()}
    table = Table(name, "games", "runs", "IQM", "median", "mean", "optimality gap", box=None)
    for setting, each in groups.items():
        count = sum(map(len, each.scores.values()))
        estimates = (each.iqm, each.median, each.mean, each.optimality_gap)
        shown = ["" if one is None else str(one) for one in estimates]
        table.add_row(setting, str(len(each.scores)), str(count), *shown)
    output.write("")
    output.show(table)


def show(runs: Sequence[Run], top: Path) -> None:
    """Print a table of runs, which are in ``top``."""
    from sebulba.rundir.run import differing

    names = differing(runs)
    evaluated = [_last(each, "evaluation_return_mean") for each in runs]
    more = ["evaluation"] if any(score is not None for score in evaluated) else []
    table = Table("run", "state", "steps", "return", *more, "steps/s", "seed", box=None)
    for column in table.columns:
        column.no_wrap = True  # Names are typed again, and numbers compared.
    for column in table.columns[2 : 5 + len(more)]:
        column.justify = "right"
    for each, score in zip(runs, evaluated, strict=True):
        where = str(each.directory.relative_to(top.expanduser()))
        steps, mean, speed = _numbers(each)
        scores = [_shown(score) for _ in more]
        seed = str(each.fields["seed"])
        table.add_row(where, each.state, steps, mean, *scores, speed, seed)
    output.show(table)
    if names:
        _show_differences(runs, names, top)


def _show_differences(runs: Sequence[Run], names: Sequence[str], top: Path) -> None:
    # Lines, and no columns: runs of two presets differ in a dozen fields.
    output.write("\nThey differ in:")
    for each in runs:
        own = " ".join(f"{name}={each.fields[name]}" for name in names if name in each.fields)
        output.write(f"{each.directory.relative_to(top.expanduser())}: {own}")


def _numbers(run: Run) -> tuple[str, str, str]:
    """Steps, the mean return of the last 100 episodes, and the speed over the whole run."""
    steps, seconds, mean = (
        _last(run, name) for name in ("steps", "seconds", "episode_return_mean_100")
    )
    speed = f"{steps / seconds:,.0f}" if steps and seconds else ""
    return f"{steps or 0:,}", _shown(mean), speed


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:,.4g}"


def _last(run: Run, name: str) -> float | int | None:
    """The last number of a metric; None where there is none yet."""
    return next((row[name] for row in reversed(run.metrics) if row.get(name) is not None), None)
