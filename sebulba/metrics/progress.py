"""Progress of a run: a live panel on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Row = Mapping[str, float | int | None]

_MAX_WIDTH = 100
_NAME_WIDTH = 10
_RETURN_WIDTH = 20
_CELL_WIDTH = 25
_BARS = "▁▂▃▄▅▆▇█"
# The lines of the panel's border join only where nothing is between them.
_NOTEBOOK_CODE = (
    '<pre style="line-height: 1.2; font-family: Menlo, Consolas, DejaVu Sans Mono, monospace">'
    "<code>{code}</code></pre>"
)
# Not among the losses: what the lines above them show, and times, which only matter for tuning.
_NOT_LOSSES = re.compile(
    "^(update|steps|frames|episode.*|evaluation.*|policy_lag.*|remote.*|.*seconds?)$"
)


class Progress:
    """Shows the rows of metrics of one run as they come; a context manager.

    On a terminal and in a notebook, it draws a panel in place. Elsewhere (a file, a pipe), it
    prints one line every few seconds, and always the first and the last row. It draws only when
    called, in the calling thread, and installs no signal handler. Values that no row has had are
    shown as "-".

    Args:
      total_steps: agent steps of the whole run.
      title: what to call the run.
      enabled: False shows nothing.
    """

    def __init__(self, total_steps: int, title: str, enabled: bool = True) -> None:
        self._view = _view(total_steps, title) if enabled else _View()
        self._total_steps = total_steps
        self._rows = 0
        self._known: dict[str, float | int] = {}
        self._pending = False
        self._due = 0.0

    def update(self, row: Row) -> None:
        """Show ``row``, or keep it for later if another one was shown a moment ago.

        For a value that is None, such as the mean return if no episode ended, the last known value
        is shown.
        """
        self._known.update({key: value for key, value in row.items() if value is not None})
        self._pending = True
        self._rows += 1
        if time.monotonic() >= self._due:
            self._flush()

    def message(self, text: str) -> None:
        """Print a separate line, above the panel if there is one."""
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
        # The last row may have come too soon after the one before it to be shown.
        try:
            self._flush()
        finally:
            with self._while_someone_reads():
                self._view.close()

    def _flush(self) -> None:
        if self._pending:
            self._pending = False
            with self._while_someone_reads():
                # The speed of the first row is mostly that of compilation.
                left = _seconds_left(self._known, self._total_steps) if self._rows > 1 else None
                self._view.show(self._known, left)
            self._due = time.monotonic() + self._view.period

    @contextlib.contextmanager
    def _while_someone_reads(self) -> Iterator[None]:
        """Show nothing from now on if the output is gone, as when a terminal or pipe is closed."""
        try:
            yield
        except OSError:
            # Training is worth more than its display: it continues.
            gone, self._view = self._view, _View()
            with contextlib.suppress(OSError):
                gone.close()


class _View:
    """A way to show rows, at least ``period`` seconds apart. This one shows nothing."""

    period = 0.0

    def open(self) -> None: ...

    def show(self, row: Row, left: float | None) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class _Lines(_View):
    """Prints a line of names and values for each row, which is easy to grep and to split."""

    period = 5.0

    def __init__(self, total_steps: int, title: str) -> None:
        self._total_steps, self._title = total_steps, title

    def open(self) -> None:
        self.message(f"{self._title}: {self._total_steps} steps")

    def show(self, row: Row, left: float | None) -> None:
        self.message(_line(row, self._total_steps, left))

    def message(self, text: str) -> None:
        print(text, flush=True)


class _Terminal(_View):
    """Draws a panel again and again in place, and leaves the last one when the run is over."""

    period = 0.1

    def __init__(self, total_steps: int, title: str, console: Console) -> None:
        self._total_steps, self._title, self._console = total_steps, title, console
        self._returns = _History(limit=48)
        # Rich's auto_refresh would draw in another thread, at any time.
        self._live = Live(console=console, auto_refresh=False)
        self._panel: Panel | str = ""

    def open(self) -> None:
        self._live.start()
        self.show({}, None)

    def show(self, row: Row, left: float | None) -> None:
        self._returns.add(row.get("episode_return_mean"))
        width = min(self._console.width, _MAX_WIDTH)
        self._panel = _panel(row, self._total_steps, self._title, self._returns, width, left)
        # The empty line is for the cursor. After the panel's last line, the ^C that a terminal
        # prints would wrap it, and an old border would stay above the next panel.
        self._live.update(Group(self._panel, ""), refresh=True)

    def message(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._live.update(self._panel)
        self._live.stop()


class _Notebook(_View):
    """Draws a panel in the place of the one before, below the cell that trains."""

    period = 0.5

    def __init__(self, total_steps: int, title: str) -> None:
        self._total_steps, self._title = total_steps, title
        self._returns = _History(limit=48)
        self._handle: Any = None

    def open(self) -> None:
        self.show({}, None)

    def show(self, row: Row, left: float | None) -> None:
        from IPython.display import HTML, display

        self._returns.add(row.get("episode_return_mean"))
        panel = _panel(row, self._total_steps, self._title, self._returns, _MAX_WIDTH, left)
        console = Console(
            record=True, width=_MAX_WIDTH, file=io.StringIO(), force_jupyter=False, highlight=False
        )
        console.print(panel)
        html = HTML(console.export_html(inline_styles=True, code_format=_NOTEBOOK_CODE))
        if self._handle is None:
            self._handle = display(html, display_id=True)
        else:
            self._handle.update(html)

    def message(self, text: str) -> None:
        print(text, flush=True)


def _view(total_steps: int, title: str) -> _View:
    console = Console(highlight=False)
    if console.is_jupyter:
        return _Notebook(total_steps, title)
    # The stream itself is asked too: FORCE_COLOR makes Rich take any output for a terminal.
    can_draw = not console.is_dumb_terminal and console.encoding.startswith("utf")
    if sys.stdout.isatty() and can_draw:
        return _Terminal(total_steps, title, console)
    return _Lines(total_steps, title)


class _History:
    """A summary of a whole series in fewer than ``limit`` values, evenly spaced.

    When it is full, it drops every second value and from then on keeps half as many new ones.
    """

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

    def sparkline(self, most: int) -> str:
        """A bar for each value, scaled from the lowest to the highest; ``most`` bars at most."""
        if not self._values:
            return ""
        low, high = min(self._values), max(self._values)
        # 1.0 if all values are equal, which then have the lowest bar.
        scale = (len(_BARS) - 1) / ((high - low) or 1.0)
        every = -(-len(self._values) // most)
        # Thinned from the end, so that the newest value is always shown.
        shown = self._values[::-1][::every][::-1]
        return "".join(_BARS[round((value - low) * scale)] for value in shown)


def _line(row: Row, total_steps: int, left: float | None) -> str:
    pairs = {
        "update": _number(row.get("update")),
        "steps": _number(row.get("steps")),
        "elapsed": _duration(row.get("seconds")),
        "left": _duration(left),
        "steps/s": _number(row.get("steps_per_second")),
        "frames/s": _number(row.get("frames_per_second")),
        "return": _number(row.get("episode_return_mean")),
        "length": _number(row.get("episode_length_mean")),
        "lag": _number(row.get("policy_lag_mean")),
    }
    if "evaluation_return_mean" in row:
        pairs["evaluation"] = _number(row["evaluation_return_mean"])
    if "remote_lanes" in row:
        pairs["remote lanes"] = _number(row["remote_lanes"])
    text = "  ".join(f"{name} {value}" for name, value in pairs.items())
    return f"{_share(row, total_steps):6.1%}  {text}"


def _panel(
    row: Row, total_steps: int, title: str, returns: _History, width: int, left: float | None
) -> Panel:
    inner = width - 4  # Inside the borders and their padding.
    lag, most = _number(row.get("policy_lag_mean")), _number(row.get("policy_lag_max"))
    pairs: tuple[tuple[Text, Text], ...] = (
        (
            _cell("length", _number(row.get("episode_length_mean"))),
            _cell("lag", f"{lag} (max {most})"),
        ),
        (
            _cell("steps/s", _number(row.get("steps_per_second"), ",")),
            _cell("frames/s", _number(row.get("frames_per_second"), ",")),
        ),
        (
            _cell("elapsed", _duration(row.get("seconds"))),
            _cell("left", _duration(left)),
        ),
    )
    if "evaluation_return_mean" in row:
        best = _number(row.get("evaluation_best_return_mean"))
        last = _number(row["evaluation_return_mean"])
        pairs += ((_cell("evaluated", last), _cell("best", best)),)
    if "remote_lanes" in row:
        pairs += ((_cell("remote", f"{_number(row['remote_lanes'])} lanes"), Text("")),)
    mean = _cell("return", _number(row.get("episode_return_mean")))
    mean.pad_right(max(1, _RETURN_WIDTH - len(mean)))
    sparkline = returns.sparkline(max(1, inner - len(mean)))
    losses = [f"{k} {_number(v)}" for k, v in row.items() if not _NOT_LOSSES.match(k)]
    heading = Text(title, "bold")
    fits = heading.cell_len <= width - 6  # Between the corners, with a line and a space each.
    lines = Group(
        *(() if fits else (heading,)),
        _bar(_share(row, total_steps), total_steps),
        mean.append(sparkline, "green"),
        _grid(pairs, inner // _CELL_WIDTH),
        Columns([Text(loss, "dim") for loss in losses], padding=(0, 2)),
    )
    return Panel(lines, title=heading if fits else None, title_align="left", width=width)


def _bar(share: float, total_steps: int) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=1.0, completed=share), f"{share:.1%} of {total_steps:,} steps")
    return grid


def _grid(pairs: Sequence[Sequence[Text]], most_columns: int) -> Table:
    """Cells in as many columns as fit: one for each pair, or two, or a single one."""
    rows: Iterable[Sequence[Text]]
    if most_columns >= len(pairs):
        rows = zip(*pairs, strict=True)
    elif most_columns >= 2:
        rows = pairs
    else:
        rows = ([cell] for pair in pairs for cell in pair)
    grid = Table.grid(expand=True)
    for row in rows:
        grid.add_row(*row)
    for column in grid.columns:
        column.ratio, column.no_wrap = 1, True
    return grid


def _cell(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<{_NAME_WIDTH}}", "dim"), (value, "bold"), no_wrap=True)


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
    # Refuses NaN too, and estimates at the start of a run that timedelta cannot hold.
    if seconds is None or not 0 <= seconds < 1e9:
        return "-"
    return str(timedelta(seconds=round(seconds)))
