"""Progress of a run on standard output: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Row = Mapping[str, float | int | None]

_WIDTH = 80
_CELLS = (28, 24, 20)
_BARS = "▁▂▃▄▅▆▇█"
# What the lines above the losses say already, and what only a profile is about.
_NOT_LOSSES = re.compile("^(update|steps|frames|episode.*|policy_lag.*|.*seconds?)$")


class Progress:
    """Shows the rows of metrics of one run as they come; a context manager.

    On a terminal it draws a panel in place; elsewhere (a file, a pipe, a notebook) it prints
    one line every few seconds, and always the first and the last. It draws only when called,
    from the calling thread, and installs no signal handler. What no row has is shown as "-".

    Args:
      total_steps: environment steps of the whole run.
      title: what to call the run.
      enabled: False shows nothing.
    """

    def __init__(self, total_steps: int, title: str, enabled: bool = True) -> None:
        self._view = _view(total_steps, title) if enabled else _View()
        self._known: dict[str, float | int] = {}
        self._pending = False
        self._due = 0.0

    def update(self, row: Row) -> None:
        """Show ``row``, or keep it for later where the last one shown is only moments old.

        Where a value is None, as the return is between the ends of episodes, the last one
        known is shown.
        """
        self._known.update({key: value for key, value in row.items() if value is not None})
        self._pending = True
        if time.monotonic() >= self._due:
            self._flush()

    def message(self, text: str) -> None:
        """Print a line of its own, above the panel where there is one."""
        with self._while_someone_reads():
            self._view.message(text)

    def __enter__(self) -> Self:
        with self._while_someone_reads():
            self._view.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._flush()
        finally:
            with self._while_someone_reads():
                self._view.close()

    def _flush(self) -> None:
        if self._pending:
            self._pending = False
            with self._while_someone_reads():
                self._view.show(self._known)
            self._due = time.monotonic() + self._view.period

    @contextlib.contextmanager
    def _while_someone_reads(self) -> Iterator[None]:
        """Show nothing any more once the output is gone, as a closed terminal or pipe is."""
        try:
            yield
        except OSError:
            gone, self._view = self._view, _View()
            with contextlib.suppress(OSError):
                gone.close()


class _View:
    """A way to show rows, at least ``period`` seconds apart. This one shows nothing."""

    period = 0.0

    def open(self) -> None: ...

    def show(self, row: Row) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class _Lines(_View):
    """A line of names and values for each row: easy to read, to grep and to split."""

    period = 5.0

    def __init__(self, total_steps: int, title: str) -> None:
        self._total_steps, self._title = total_steps, title

    def open(self) -> None:
        self.message(f"{self._title}: {self._total_steps} steps")

    def show(self, row: Row) -> None:
        self.message(_line(row, self._total_steps))

    def message(self, text: str) -> None:
        print(text, flush=True)


class _Terminal(_View):
    """A panel that is drawn over and over in place, and stays when the run is over."""

    period = 0.1

    def __init__(self, total_steps: int, title: str, console: Console) -> None:
        self._total_steps, self._title, self._console = total_steps, title, console
        self._returns = _History(limit=48)
        self._live = Live(console=console, auto_refresh=False)

    def open(self) -> None:
        self._live.start()
        self.show({})

    def show(self, row: Row) -> None:
        self._returns.add(row.get("episode_return_mean"))
        panel = _panel(row, self._total_steps, self._title, self._returns.sparkline())
        self._live.update(panel, refresh=True)

    def message(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()


def _view(total_steps: int, title: str) -> _View:
    console = Console(highlight=False)
    can_draw = not console.is_dumb_terminal and console.encoding.startswith("utf")
    if sys.stdout.isatty() and can_draw:
        return _Terminal(total_steps, title, console)
    return _Lines(total_steps, title)


class _History:
    """A whole series in fewer than ``limit`` values: when full, every second one goes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._stride, self._seen = limit, 1, 0
        self._values: list[float] = []

    def add(self, value: float | None) -> None:
        """Remember ``value``, unless there is none."""
        if value is None or not math.isfinite(value):
            return
        if self._seen % self._stride == 0:
            self._values.append(value)
        self._seen += 1
        if len(self._values) == self._limit:
            self._values = self._values[::2]
            self._stride *= 2

    def sparkline(self) -> str:
        """One bar a value, the lowest value lowest."""
        if not self._values:
            return ""
        low, high = min(self._values), max(self._values)
        scale = (len(_BARS) - 1) / ((high - low) or 1.0)
        return "".join(_BARS[round((value - low) * scale)] for value in self._values)


def _line(row: Row, total_steps: int) -> str:
    pairs = {
        "update": _number(row.get("update")),
        "steps": _number(row.get("steps")),
        "elapsed": _duration(row.get("seconds")),
        "left": _duration(_seconds_left(row, total_steps)),
        "steps/s": _number(row.get("steps_per_second")),
        "frames/s": _number(row.get("frames_per_second")),
        "return": _number(row.get("episode_return_mean")),
        "length": _number(row.get("episode_length_mean")),
        "lag": _number(row.get("policy_lag_mean")),
    }
    text = "  ".join(f"{name} {value}" for name, value in pairs.items())
    return f"{_share(row, total_steps):6.1%}  {text}"


def _panel(row: Row, total_steps: int, title: str, sparkline: str) -> Panel:
    lag, most = _number(row.get("policy_lag_mean")), _number(row.get("policy_lag_max"))
    losses = "  ".join(f"{k} {_number(v)}" for k, v in row.items() if not _NOT_LOSSES.match(k))
    lines = Group(
        _bar(_share(row, total_steps), total_steps),
        _cells({"return": _number(row.get("episode_return_mean"))}).append(sparkline, "green"),
        _cells(
            {
                "length": _number(row.get("episode_length_mean")),
                "steps/s": _number(row.get("steps_per_second"), ","),
                "elapsed": _duration(row.get("seconds")),
            }
        ),
        _cells(
            {
                "lag": f"{lag} (at most {most})",
                "frames/s": _number(row.get("frames_per_second"), ","),
                "left": _duration(_seconds_left(row, total_steps)),
            }
        ),
        Text(losses, "dim"),
    )
    return Panel(lines, title=Text(title, "bold"), title_align="left", width=_WIDTH)


def _bar(share: float, total_steps: int) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=1.0, completed=share), f"{share:.1%} of {total_steps:,} steps")
    return grid


def _cells(pairs: Mapping[str, str]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for (name, value), width in zip(pairs.items(), _CELLS, strict=False):
        text.append(f"{name:<9}", "dim").append(f"{value:<{width - 9}}", "bold")
    return text


def _share(row: Row, total_steps: int) -> float:
    return min((row.get("steps") or 0) / max(total_steps, 1), 1.0)


def _seconds_left(row: Row, total_steps: int) -> float | None:
    rate = row.get("steps_per_second")
    return max(total_steps - (row.get("steps") or 0), 0) / rate if rate else None


def _number(value: float | int | None, thousands: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:{thousands}.0f}"
    return f"{value:.4g}"


def _duration(seconds: float | None) -> str:
    if seconds is None or not 0 <= seconds < 1e9:
        return "-"
    return str(timedelta(seconds=round(seconds)))
