"""How commands print, to a terminal or whatever reads them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

UNREAD = 141
"""Exit code, as of a program that SIGPIPE has ended."""
_WIDTH_OFF_A_TERMINAL = 120


def show(result: RenderableType) -> None:
    """Print a table or the like, as wide as the terminal."""
    with ending_where_unread():
        _Console(width=width()).print(result)


def write(text: str) -> None:
    """Print a result as it is."""
    with ending_where_unread():
        print(text)


def say(text: str) -> None:
    """Print a line that nothing depends on: the command goes on where nobody reads it."""
    # Not by rich, which would wrap what is there to be copied.
    with contextlib.suppress(OSError):
        print(text, flush=True)


def say_error(text: str) -> None:
    """Print what is wrong with the input, on standard error."""
    console = _Console(stderr=True, highlight=False)
    with contextlib.suppress(OSError):
        console.print("[bold red]error:[/]", escape(text), soft_wrap=True)


@contextlib.contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of ``total`` are done, on a terminal and only until the end.

    Inside, call what it yields with that number, as often as you like.
    """
    # On standard error, which is no part of a result that is printed for machines.
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def ending_where_unread() -> Iterator[None]:
    """End the program where nobody reads any more what is printed inside, as after ``| head``."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(UNREAD)


def have_one() -> None:
    """Print nowhere, where the program was started without standard output."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def forget_what_is_unread() -> None:
    """Drop what was printed and cannot be written: Python itself would try again, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def width() -> int:
    """Columns of the terminal, or as many as there is room for elsewhere."""
    return shutil.get_terminal_size((_WIDTH_OFF_A_TERMINAL, 24)).columns


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # As print does: rich would exit with 1.
