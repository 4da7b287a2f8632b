"""Calls that may never return."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


def attempt(call: Callable[[], object], seconds: float) -> None:
    """Call ``call`` in a thread of its own, and wait no longer than ``seconds`` for it.

    For what may block for ever: a pipe that nobody reads, a coordinator that does not answer.
    Errors are left out.
    """

    def run() -> None:
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=run, daemon=True)
    with contextlib.suppress(RuntimeError):  # The interpreter starts no threads when it ends.
        thread.start()
        thread.join(seconds)
