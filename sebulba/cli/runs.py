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


def run(words: Sequence[str]) -> None:
    """List the runs in a directory: how far they are, how well they do, and how they differ."""
    given = options.parse(Options(), words, "sebulba runs", run.__doc__)

    from sebulba.rundir.run import find_runs

    show(find_runs(given.directory), given.directory)


def show(runs: Sequence[Run], top: Path) -> None:
    """Print a table of runs, which are in ``top``."""
    from sebulba.rundir.run import differing

    names = differing(runs)
    table = Table("run", "state", "steps", "return", "steps/s", "seed", *names, box=None)
    for column in table.columns[2:5]:
        column.justify = "right"
    for each in runs:
        where = str(each.directory.relative_to(top.expanduser()))
        own = [str(each.fields.get(name, "")) for name in ("seed", *names)]
        table.add_row(where, each.state, *_numbers(each), *own)
    output.show(table)


def _numbers(run: Run) -> tuple[str, str, str]:
    """Steps, the mean return of the last 100 episodes, and the speed over the whole run."""
    steps, seconds, mean = (
        _last(run, name) for name in ("steps", "seconds", "episode_return_mean_100")
    )
    speed = f"{steps / seconds:,.0f}" if steps and seconds else ""
    return f"{steps or 0:,}", "" if mean is None else f"{mean:,.4g}", speed


def _last(run: Run, name: str) -> float | int | None:
    """The last number of a metric; None where there is none yet."""
    return next((row[name] for row in reversed(run.metrics) if row.get(name) is not None), None)
