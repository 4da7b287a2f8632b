"""Ctrl-C, SIGTERM and SIGHUP, heard even while the main thread is in native code."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

TWICE_SECONDS = 0.5
"""Schedulers may signal a process both directly and through its parent, and a machine that shuts
down sends one signal after the other. Signals this close to the first are one request with it."""


class Interrupt:
    """Remembers the first Ctrl-C, SIGTERM or SIGHUP, and ends the process at a second one.

    Attributes:
      signal: number of the first signal, or None while there was none.
      at: when it came, on the clock of ``time.monotonic``.
      raises: whether the first signal raises ``KeyboardInterrupt`` at once, where there is nothing
        to save.
    """

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        """``end`` is called at a second signal, from another thread.

        Without it, and for Ctrl-C in an interactive session, a second Ctrl-C raises
        ``KeyboardInterrupt`` in the main thread, and other second signals do nothing.
        """
        # No threading.Event: a signal handler runs in the middle of whatever the main thread does,
        # and would wait forever for a lock that the main thread holds.
        self.signal: int | None = None
        self.at = 0.0
        self.raises = False
        self._end = end
        self._handled = False
        self._before: dict[int, Any] = {}

    @contextlib.contextmanager
    def listen(self) -> Iterator[Interrupt]:
        """Handle these signals inside the context. In other threads than the main one, do nothing.

        If SIGHUP is ignored, as under nohup, it stays ignored.
        """
        # Python allows signal handlers to be set in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        # Python's handlers wait until the main thread is back from native code, such as a
        # compilation or a wait for other hosts. What is written to this socket does not.
        ours, heard = socket.socketpair()
        heard.setblocking(False)
        ears = threading.Thread(target=self._hear, args=(ours,), name="signals", daemon=True)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        previous = signal.set_wakeup_fd(heard.fileno(), warn_on_full_buffer=False)
        _listening.append(self)
        ears.start()
        try:
            yield self
        finally:
            _listening.remove(self)
            signal.set_wakeup_fd(previous)
            self._put_handlers_back()
            # Ends the thread; closing alone would not, while a forked worker has the socket too.
            heard.shutdown(socket.SHUT_RDWR)
            heard.close()
            ears.join()
            ours.close()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Not by whether the signal is noted: the thread below may have noted this one long ago.
        first, self._handled = not self._handled, True
        self._note(number)
        if self.raises if first else (number == signal.SIGINT and not self._may_end(number)):
            raise KeyboardInterrupt

    def _hear(self, numbers: socket.socket) -> None:
        # By its own ears, since the handler may have noted a signal long before it is heard here.
        heard_at = math.inf
        while heard := numbers.recv(1):
            number = heard[0]
            if number not in self._before:
                continue
            now = time.monotonic()
            is_second = now - heard_at > TWICE_SECONDS
            heard_at = min(heard_at, now)
            self._note(number)
            if is_second and self._end is not None and may_end(number):
                self._end()

    def _note(self, number: int) -> None:
        if self.signal is None:
            self.at = time.monotonic()
            self.signal = number

    def _may_end(self, number: int) -> bool:
        """Whether this signal may end the process: Ctrl-C must not end a notebook's."""
        return self._end is not None and may_end(number)

    def _put_handlers_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process inside, where there is nothing to save.

    Python would raise ``KeyboardInterrupt`` wherever the main thread is. In a callback of the
    garbage collector, of which JAX has one, it would be printed and forgotten.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    # Ignored, as in a shell's background job, it stays ignored; and a notebook goes on.
    if not is_main or before in (None, signal.SIG_IGN) or not may_end(signal.SIGINT):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def may_end(number: int) -> bool:
    """Whether the process may end for this signal: for Ctrl-C not in an interactive session."""
    return number != signal.SIGINT or not hasattr(sys, "ps1")


_listening: list[Interrupt] = []


def _forget_in_child() -> None:
    # A forked worker of an environment would otherwise survive SIGTERM, and tell its parent of it
    # through the socket, which both have.
    for interrupt in _listening:
        signal.set_wakeup_fd(-1)
        interrupt._put_handlers_back()


os.register_at_fork(after_in_child=_forget_in_child)
