"""Threads whose first failure reaches the caller, and interrupts that lose nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import jax

from sebulba.runtime.queues import ShutDown

POLL_SECONDS = 0.1

# Measured on two cores: 5 makes training faster by 6 to 10%; 19, which starves the environments
# until the learner waits for them, by 1%.
_WAY = 5


class Interrupt:
    """Set by the first Ctrl-C, SIGTERM or SIGHUP; Ctrl-C after that raises at once.

    The others come twice where a scheduler tells the processes both itself and through their
    parent, or a machine that shuts down sends one after the other: that is one request.

    A plain attribute, because a signal handler runs in the middle of whatever the main thread
    was doing and must not take a lock that it may hold.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextlib.contextmanager
    def listen(self) -> Iterator[Interrupt]:
        """Handle these signals inside the context, where this is the main thread.

        SIGHUP stays ignored where it is, as under nohup.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signals.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._handle) for number in signals}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


class ThreadGroup:
    """Threads that stop together.

    The first exception in any of them stops all the others and is raised, as it was, by
    ``close`` in the thread that owns the group.
    """

    def __init__(self, join_seconds: float = 10.0) -> None:
        """``join_seconds``: how long ``close`` waits for threads to end."""
        self.stopping = threading.Event()
        self._join_seconds = join_seconds
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._on_stop: list[Callable[[], None]] = []
        self._failure: BaseException | None = None

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the group stops, to end waits that its threads may be in."""
        self._on_stop.append(wake)

    def start(self, name: str, target: Callable[[], None]) -> None:
        """Run ``target`` in a new thread."""
        thread = threading.Thread(target=self._run, args=(target,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Ask every thread to end."""
        self.stopping.set()
        for wake in self._on_stop:
            wake()

    def close(self) -> None:
        """Stop, wait for every thread to end, and raise the first failure if there was one."""
        self.stop()
        deadline = time.monotonic() + self._join_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            warnings.warn(
                f"threads {alive} did not end within {self._join_seconds} s; an environment's "
                "step may be stuck",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._failure is not None:
            raise self._failure

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        except ShutDown:
            pass
        except BaseException as error:
            with self._lock:
                if self._failure is None and not self.stopping.is_set():
                    self._failure = error
            self.stop()


def give_way() -> None:
    """Have the other threads of this process go before this one and those that it will start.

    Only on Linux, where a thread has a priority of its own. An actor's environments then use what
    the learner leaves of a CPU, instead of holding up an operation of which every core has a part.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, niceness + _WAY)


def wait_until_ready(arrays: object, poll: Callable[[], None], interval: float = 5e-4) -> None:
    """Wait for device arrays without blocking in the runtime, calling ``poll`` in between.

    Blocking calls into the runtime do not return for signals or for failures elsewhere.
    """
    for leaf in jax.tree.leaves(arrays):
        while not leaf.is_ready():
            poll()
            time.sleep(interval)
