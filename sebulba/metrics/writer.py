"""Writing the metrics of a run to ``metrics.jsonl`` and to TensorBoard files."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sebulba.metrics.meter import Row
from sebulba.types import Histogram

FILE_NAME = "metrics.jsonl"
_GROUPS = {
    "evaluation": "^evaluation",
    "episode": "^episode",
    "loss": "loss$",
    "time": "seconds?$",
    "lag": "^policy_lag",
    "action": r"^action(_\d+)?$",
}


class MetricsWriter:
    """Appends rows of scalars to ``directory/metrics.jsonl`` and ``directory/tensorboard``.

    Rows are flat dicts with at least ``update`` and ``steps``; TensorBoard's x axis is ``steps``.
    A row is in the hands of the operating system when ``write`` returns.

    Args:
      directory: the run's directory, which is created if it does not exist.
      resume_steps: the agent steps after which the run continues. Rows with more steps, which the
        run is about to repeat, are dropped. None starts a new file.

    Raises:
      FileExistsError: ``resume_steps`` is None and the directory has metrics already.
    """

    def __init__(self, directory: Path, resume_steps: int | None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / FILE_NAME
        purge_steps = None
        if resume_steps is not None:
            purge_steps = _drop_rows_after(path, resume_steps)
        elif path.exists() and path.stat().st_size:
            raise FileExistsError(
                f"{path} holds the metrics of an earlier run, and a new run starts a new file: "
                "resume that run or choose another directory"
            )
        self._tensorboard = _TensorBoardWriter(directory / "tensorboard", purge_steps)
        # Only opened now, since dropping the old rows replaces the file.
        self._file = path.open("a", encoding="utf-8")

    def write(
        self,
        row: Mapping[str, float | int | None],
        histograms: Mapping[str, Histogram] = {},
    ) -> None:
        """Append one row, as ``tidied`` returns it; None is stored as null.

        ``histograms`` go to TensorBoard alone.

        Raises:
          ValueError: the row has no ``update`` or no ``steps``, or a number that JSON cannot hold.
        """
        for key in ("update", "steps"):
            if row.get(key) is None:
                raise ValueError(f"a row of metrics needs '{key}', got the keys {sorted(row)}")
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        self._tensorboard.write(row, histograms)

    def close(self) -> None:
        """Write what is buffered; may be called more than once."""
        try:
            self._file.close()
        finally:
            self._tensorboard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read(directory: Path) -> list[dict[str, Any]]:
    """All rows of ``directory/metrics.jsonl``, oldest first.

    A last line that is incomplete, because the run was killed or is writing it, is left out.

    Raises:
      FileNotFoundError: the directory has no metrics.
      ValueError: a line before the last is not JSON.
    """
    lines = (Path(directory) / FILE_NAME).read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(
                    f"{FILE_NAME} in {directory}: line {number} is not JSON; delete it"
                ) from error
    return rows


def _drop_rows_after(path: Path, steps: int) -> int:
    """Keep only the rows up to ``steps``, atomically; returns the steps of the last of them."""
    # Not by the number of updates, which is the same in many rows while a replay is filled.
    rows = read(path.parent) if path.exists() else []
    rows = [row for row in rows if row["steps"] <= steps]
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        # On the disk before the name changes: after a power failure, the renamed file could
        # otherwise be empty.
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    return int(rows[-1]["steps"]) if rows else 0


def tidied(row: Mapping[str, float | int | None]) -> Row:
    """A row of numbers that JSON can hold, and None in place of NaN and infinities."""
    return {key: _tidy(value) for key, value in row.items()}


def _tidy(value: float | int | None) -> float | int | None:
    """With the 7 significant digits of a float32."""
    if value is None or isinstance(value, Integral):
        return None if value is None else int(value)
    number = float(value)
    return float(f"{number:.7g}") if math.isfinite(number) else None


def _tag(key: str) -> str:
    """The name of a chart; TensorBoard groups charts by the part before the slash."""
    groups = (group for group, pattern in _GROUPS.items() if re.search(pattern, key))
    return f"{next(groups, 'training')}/{key}"


class _TensorBoardWriter:
    """Writes event files in the calling thread.

    tensorboardX's own SummaryWriter passes events to a thread through a bounded queue. If that
    thread dies, as on a full disk, its caller waits for the queue forever.
    """

    def __init__(self, directory: Path, purge_steps: int | None) -> None:
        # Imported here, since reading metrics in a notebook does not need it.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        directory.mkdir(exist_ok=True)
        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        self._histogram_proto = summary_pb2.HistogramProto
        # The suffix keeps a resume within the same second from opening the same file.
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"
        self._events: Any = EventsWriter(str(directory / "events"), suffix)
        if purge_steps is not None:
            # Event files cannot be rewritten. A session start tells TensorBoard to drop the earlier
            # events from this step on, which the resumed run repeats.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=purge_steps + 1, session_log=start)

    def write(
        self, row: Mapping[str, float | int | None], histograms: Mapping[str, Histogram]
    ) -> None:
        values = [
            self._summary.Value(tag=_tag(key), simple_value=value)
            for key, value in row.items()
            if value is not None and key != "steps"
        ]
        values += [
            self._summary.Value(tag=_tag(name), histo=self._histogram(histogram))
            for name, histogram in histograms.items()
        ]
        self._write(step=row["steps"], summary=self._summary(value=values))
        # At once: what a kill loses here, a resumed run would not repeat.
        self._events.flush()

    def _histogram(self, histogram: Histogram) -> Any:
        edges, counts = histogram
        middles = (edges[:-1] + edges[1:]) / 2
        # From the first edge to the last, whatever the counts, so that charts keep their axis.
        return self._histogram_proto(
            min=edges[0],
            max=edges[-1],
            num=counts.sum(),
            sum=counts @ middles,
            sum_squares=counts @ middles**2,
            bucket_limit=edges[1:],
            bucket=counts,
        )

    def _write(self, **event: Any) -> None:
        self._events.write_event(self._event(wall_time=time.time(), **event))

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
