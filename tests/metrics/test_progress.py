"""The progress display, on a terminal (a real pseudo-terminal) and off it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import types
from typing import Any

import pytest
import rich.console

from sebulba.metrics import progress as display
from sebulba.metrics.progress import Progress

ROW = {
    "update": 7,
    "steps": 2500,
    "frames": 10000,
    "seconds": 83.0,
    "steps_per_second": 250.0,
    "frames_per_second": 1000.0,
    "episodes": 12,
    "episode_return_mean": 187.46,
    "episode_length_mean": 42.0,
    "policy_lag_mean": 1.25,
    "policy_lag_max": 3,
    "policy_loss": -0.5,
}
# Run from its file: importing the package would import jax.
RUN = """
import runpy
row = {row}
with runpy.run_path({path!r})["Progress"](10_000, {title!r}) as progress:
    progress.update(row)
    progress.message("a [note]")
    progress.update(row)
    {then}
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def on_a_terminal(then: str, columns: int = 100, title: str = "cartpole") -> tuple[str, int]:
    """What a program prints on a pseudo-terminal, and how it exits."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            RUN.format(row=ROW, path=display.__file__, title=title, then=then),
        ],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "30"},
    )
    os.close(terminal)
    printed = b""
    try:
        while piece := os.read(main, 4096):
            printed += piece
    except OSError:  # Linux's way to say that the other end has closed.
        pass
    os.close(main)
    return printed.decode(), process.wait(timeout=10)


def plain(printed: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10_000, "cartpole") as progress:
        progress.update(ROW)
        progress.message("a [note]")
        progress.update(ROW)
    line = (
        " 25.0%  update 7  steps 2500  elapsed 0:01:23  left {}  steps/s 250  "
        "frames/s 1000  return 187.5  length 42  lag 1.25"
    )
    # What is left is not told from the first row, which took as long as compilation did.
    assert capsys.readouterr().out.splitlines() == [
        "cartpole: 10000 steps",
        line.format("-"),
        "a [note]",
        line.format("0:00:30"),
    ]


def test_remote_lanes_and_evaluations_are_shown_where_there_are_some(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_lanes = {"remote_lanes": 3, "remote_lane_0_reconnections": 1}
    row = ROW | {"evaluation_return_mean": 487.5, "evaluation_skipped": 2} | of_lanes
    with Progress(10_000, "cartpole") as progress:
        progress.update(row)
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .endswith("lag 1.25  evaluation 487.5  remote lanes 3")
    )
    printed, _ = on_a_terminal(f"progress.update({row})")
    assert "3 lanes" in plain(printed) and "reconnections" not in plain(printed)


def test_lines_are_seconds_apart_but_for_the_last(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with Progress(10_000, "cartpole") as progress:
        for update in range(12):
            progress.update(ROW | {"update": update})
            clock[0] += 1.0
    shown = re.findall(r"update (\d+)", capsys.readouterr().out)
    assert shown == ["0", "5", "10", "11"]


def test_the_last_line_is_shown_once_and_after_an_error_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyboardInterrupt), Progress(10_000, "cartpole") as progress:
        progress.update(ROW | {"update": 1})
        progress.update(ROW | {"update": 2})
        raise KeyboardInterrupt
    assert re.findall(r"update (\d+)", capsys.readouterr().out) == ["1", "2"]


def test_disabled_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10_000, "cartpole", enabled=False) as progress:
        progress.update(ROW)
        progress.message("a note")
    assert capsys.readouterr() == ("", "")


def test_the_last_known_return_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10_000, "cartpole") as progress:
        progress.update({**ROW, "episode_return_mean": None})
        progress.update({**ROW, "episode_return_mean": 5.0})
        progress.update({**ROW, "episode_return_mean": None})
    assert re.findall(r"return (\S+)", capsys.readouterr().out) == ["-", "5"]


@pytest.mark.parametrize("missing", [*ROW, "all"])
@pytest.mark.parametrize("bad", [None, 0, float("nan"), float("inf"), 1e-30])
def test_no_value_is_too_odd(missing: str, bad: float | None) -> None:
    keys = ROW if missing == "all" else [missing]
    absent = {key: value for key, value in ROW.items() if key not in keys}
    for row in (absent, absent | dict.fromkeys(keys, bad)):
        for total_steps in (0, 10_000):
            left = display._seconds_left(row, total_steps)
            display._line(row, total_steps, left)
            display._panel(row, total_steps, "title", display._History(limit=48), 100, left)


def test_a_terminal_gets_a_panel() -> None:
    printed, code = on_a_terminal("assert __import__('threading').active_count() == 1")
    assert code == 0
    text = plain(printed)
    for part in ("cartpole", "25.0% of 10,000 steps", "187.5", "0:01:23", "policy_loss -0.5"):
        assert part in text
    assert "1.25 (max 3)" in text
    assert "a [note]" in text


def test_a_notebook_gets_one_panel(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Handle:
        update = staticmethod(shown.append)

    def show(html: str, display_id: bool) -> Handle:
        assert display_id and not shown, "later panels take the place of the first"
        shown.append(html)
        return Handle()

    module: Any = types.ModuleType("IPython.display")
    module.display, module.HTML = show, str
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    with Progress(10_000, "cartpole") as progress:
        for _ in range(2):
            progress.update(ROW)
            clock[0] += 1.0
        progress.message("a [note]")
    assert len(shown) == 3, "the empty panel, and one for each row"
    assert shown[-1].startswith("<pre") and shown[-1].endswith("</pre>")
    text = re.sub("<[^>]*>", "", shown[-1])
    for part in ("cartpole", "25.0% of 10,000 steps", "187.5", "0:00:30", "policy_loss -0.5"):
        assert part in text
    assert capsys.readouterr().out == "a [note]\n"


@pytest.mark.parametrize("then", ["pass", "1 / 0", "raise KeyboardInterrupt"])
def test_the_terminal_is_left_clean(then: str) -> None:
    printed, code = on_a_terminal(then)
    assert (code == 0) == (then == "pass")
    assert printed.rfind("\x1b[?25h") > printed.rfind("\x1b[?25l") >= 0, "the cursor is hidden"
    assert printed.endswith(("\n", "\x1b[?25h"))


@pytest.mark.parametrize(
    ("columns", "width"), [(120, 100), (100, 100), (80, 80), (60, 60), (40, 40)]
)
def test_the_panel_fits_the_terminal_and_every_name_has_its_value(columns: int, width: int) -> None:
    title = "vtrace-cartpole · CartPole-v1 · a0-l0 (1 host, cpu; a acts, l learns)"
    evaluated = {"evaluation_return_mean": 487.5, "evaluation_best_return_mean": 492.25}
    then = f"row.update({evaluated}); progress._due = 0; progress.update(row)"
    printed, _ = on_a_terminal(then, columns, title)
    lines = plain(printed).splitlines()
    assert max(map(len, lines)) == width
    words = " ".join("".join(lines).translate(str.maketrans("╭─╮│", "    ")).split())
    assert title in words
    for name, value in {
        "return": "187.5",
        "length": "42",
        "lag": r"1.25 \(max 3\)",
        "steps/s": "250",
        "frames/s": "1,000",
        "elapsed": "0:01:23",
        "left": "0:00:30",
        "policy_loss": "-0.5",
        "evaluated": "487.5",
        "best": "492.2",
    }.items():
        assert re.search(rf"{name} +{value} ", "\n".join(lines))


def test_what_a_terminal_prints_for_ctrl_c_leaves_no_border_behind() -> None:
    # The terminal prints ^C where the cursor is, which moves to a new line where that one is full.
    for columns in (60, 100):
        then = "__import__('os').write(1, b'^C'); progress._due = 0; progress.update(row)"
        screen = on_screen(on_a_terminal(then, columns)[0], columns)
        assert [line[0] for line in screen if line[:1] in ("╭", "╰")] == ["╭", "╰"]
        assert "^C" not in "".join(screen)


def on_screen(printed: str, columns: int) -> list[str]:
    """The lines that a terminal shows, tall enough to never scroll."""
    lines, row, column = [""] * 100, 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]", printed):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith("\x1b"):
            if column == columns:
                row, column = row + 1, 0
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return lines


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display._view(10, "title"), display._Lines)


def test_signal_handlers_stay_and_no_thread_is_started() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGWINCH)
    threads = threading.enumerate()
    with Progress(10_000, "cartpole") as progress:
        progress.update(ROW)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGWINCH)) == before
        assert not set(threading.enumerate()) - set(threads)


def test_the_sparkline_spans_the_whole_series() -> None:
    history = display._History(limit=48)
    for value in range(10_000):
        history.add(float(value))
        history.add(None)
        history.add(float("nan"))
    line = history.sparkline(48)
    assert 24 <= len(line) <= 48
    assert line[0] == "▁" and line[-1] == "█"
    assert list(line) == sorted(line)
    assert line[len(line) // 2] in "▄▅", "a straight series is half way up in its middle"
    short = history.sparkline(10)
    assert 5 <= len(short) <= 10 and short[-1] == "█" and list(short) == sorted(short)


def test_a_flat_series_has_a_flat_sparkline() -> None:
    history = display._History(limit=48)
    assert history.sparkline(48) == ""
    history.add(3.0)
    history.add(3.0)
    assert history.sparkline(48) == "▁▁"
