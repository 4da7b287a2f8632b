"""``sebulba plot``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from sebulba.cli import options, output
from sebulba.metrics.shown import METRICS, Axis
from sebulba.validation import ConfigError

_KINDS = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run directories, or directories of runs."""
    out: Path = Path("runs.png")
    """The picture: its name ends in .png, .svg or .pdf."""
    metrics: tuple[str, ...] = METRICS
    """Names of metrics, a panel for each; docs/metrics.md lists them."""
    x: Axis = "steps"
    """Agent steps, frames of the game, or minutes of training."""
    by: str | None = None
    """A field of the config, such as optimizer.learning_rate: one curve for each value. None: one
    for each setting, whatever differs."""


def run(words: Sequence[str]) -> None:
    """Draw the return, speed, lag and loss of one or several runs.

    Runs that differ in nothing but the seed are one curve, their mean, with a band from the lowest
    to the highest.
    """
    given = options.parse(Options(runs=()), words, "sebulba plot", run.__doc__)
    if given.out.suffix not in _KINDS:
        raise ConfigError(f"--out is {given.out}: its name must end in one of {', '.join(_KINDS)}.")

    from sebulba.rundir.run import find_runs, plot

    runs = [found for directory in given.runs for found in find_runs(directory)]
    figure = plot(runs, given.metrics, given.x, given.by)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out, dpi=150)
    output.write(f"{len(runs)} run{'s' if len(runs) > 1 else ''} drawn: {given.out}")
