"""Where the rows of metrics go besides the run directory."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from sebulba.metrics import plot
from sebulba.metrics.meter import Row
from sebulba.metrics.shown import METRICS, Axis
from sebulba.validation import ConfigError


class Sink(Protocol):
    """Takes the rows of a run as they come; ``sebulba.train(config, sinks=[...])``.

    Both methods are called in the learner's thread, which waits for them, and on the primary host
    only. What they raise ends the run.
    """

    def write(self, row: Row) -> None:
        """Take one row: names and numbers, as docs/metrics.md lists them; None for no number."""

    def close(self) -> None:
        """Take the end of the run, after its last row or its failure."""


def checked_sinks(sinks: Iterable[Sink]) -> tuple[Sink, ...]:
    """What ``sebulba.train`` was given as ``sinks``, if these are sinks.

    Raises:
      ConfigError: it is something else, such as one sink, or a class of sinks.
    """
    made = tuple(sinks) if isinstance(sinks, Iterable) else (None,)
    if not all(map(_is_sink, made)):
        raise ConfigError(
            f"sinks is {sinks!r}: it must be a list of objects with the methods write and close. "
            "Pass sinks=[sebulba.CsvSink('rows.csv')], say."
        )
    return made


def _is_sink(found: Any) -> bool:
    methods = (getattr(found, name, None) for name in ("write", "close"))
    return not isinstance(found, type) and all(map(callable, methods))


class CsvSink:
    """Writes rows to a CSV file, one column for each metric.

    Args:
      path: the file; rows that are there already are kept.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path).expanduser()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        there = self._path.read_text() if self._path.exists() else ""
        self._columns = next(csv.reader(there.splitlines()), [])
        # What follows must not become a part of a line that a kill has cut short.
        if there and not there.endswith("\n"):
            with self._path.open("a", newline="") as file:
                file.write("\r\n")

    def write(self, row: Row) -> None:
        """Append one row."""
        new = [name for name in row if name not in self._columns]
        if new:  # R2D2, say, has more to tell once it learns.
            self._add_columns(new)
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def close(self) -> None:
        """Nothing is left to do."""

    def _add_columns(self, names: Sequence[str]) -> None:
        before: list[dict[str, str]] = []
        if self._path.exists():
            with self._path.open(newline="") as file:
                before = list(csv.DictReader(file))
        self._columns += names
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(before)
        os.replace(temporary, self._path)


class LivePlot:
    """Draws metrics in a notebook while the run goes on, in the place of one picture.

    Args:
      metrics: names of metrics, a panel for each.
      x: agent steps, frames of the game, or minutes of training.
      seconds: how often to draw at most.

    Raises:
      ConfigError: IPython is missing, so this is no notebook; or an argument is something else.
    """

    def __init__(
        self, metrics: Sequence[str] = METRICS, x: Axis = "steps", seconds: float = 2.0
    ) -> None:
        try:
            from IPython.display import display
        except ImportError as error:
            raise ConfigError(
                f"a live plot is for notebooks ({error}): pip install ipython, or draw the run "
                "with sebulba plot."
            ) from error
        self._display: Any = display
        self._metrics, self._x, self._seconds = plot.checked(metrics, x), x, seconds
        self._rows: list[Row] = []
        self._handle: Any = None
        self._drawn_at = -float("inf")

    def write(self, row: Row) -> None:
        """Take one row, and draw if it is time to."""
        self._rows.append(row)
        if time.monotonic() - self._drawn_at >= self._seconds:
            self._draw()

    def close(self) -> None:
        """Draw all rows."""
        if self._rows:
            self._draw()

    def _draw(self) -> None:
        known = {name for row in self._rows for name, value in row.items() if value is not None}
        metrics = [name for name in self._metrics if name in known]
        if metrics:
            figure = plot.draw([plot.Curves("this run", self._rows)], metrics, self._x)
            if self._handle is None:
                self._handle = self._display(figure, display_id=True)
            else:
                self._handle.update(figure)
        # Drawing takes a tenth of a second or so, which must not become most of the training.
        self._drawn_at = time.monotonic()
