"""The rows of metrics of one run, and where they go."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from sebulba.devices import distributed
from sebulba.metrics.meter import Row
from sebulba.metrics.progress import Progress
from sebulba.metrics.sinks import Sink
from sebulba.metrics.writer import tidied
from sebulba.rundir.directory import RunDirectory
from sebulba.types import Histogram

MAX_ROWS = 2_000
"""Rows that are kept in memory, so that a run of weeks does not fill it."""


class Rows:
    """Rows go to the run directory, the display and the sinks, and the last ones are kept.

    A context manager, which closes the sinks.

    Args:
      directory: of the run.
      display: shows the rows, and messages.
      sinks: of the user; only the primary host writes to them.
    """

    def __init__(
        self, directory: RunDirectory, display: Progress, sinks: Sequence[Sink] = ()
    ) -> None:
        self._directory = directory
        self._display = display
        self._sinks = sinks if distributed.is_primary() else ()
        # As JSON, which takes a third of the memory.
        self._kept: deque[str] = deque(maxlen=MAX_ROWS)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for sink in self._sinks:
            self._stack.callback(sink.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def message(self, text: str) -> None:
        """Show a line that belongs to no row."""
        self._display.message(text)

    def kept(self) -> list[Row]:
        """The last ``MAX_ROWS`` rows."""
        return [json.loads(row) for row in self._kept]

    def add(self, row: Row, histograms: Mapping[str, Histogram] = {}) -> None:
        """Keep a row, and write and show it, with the histograms of the same moment."""
        row = tidied(row)
        self._kept.append(json.dumps(row))
        self._directory.write(row, histograms)
        self._display.update(row)
        for sink in self._sinks:
            sink.write(json.loads(self._kept[-1]))

    def add_to_last(self, values: Row) -> None:
        """Add the last row once more, with what is known only now."""
        self.add({**json.loads(self._kept[-1]), **values})
