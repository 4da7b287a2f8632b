"""Threads whose first failure is raised in the caller."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable

import jax

from sebulba.runtime.queues import ShutDown

POLL_SECONDS = 0.1
"""How long the main thread waits before it looks for interrupts and failures."""

# How much is added to the niceness of an actor. On two cores, 5 makes training 6 to 10% faster. 19
# makes it only 1% faster, because the learner has to wait for the environments.
_WAY = 5


JOIN_SECONDS = 10.0
"""How long a run that ends waits for its actors."""


class ThreadGroup:
    """Threads that stop together.

    The first exception in any of them stops all others. ``close`` raises it, unchanged, in the
    thread that owns the group.
    """

    def __init__(self, join_seconds: float) -> None:
        """``join_seconds`` is how long ``close`` waits for the threads to end."""
        self.stopping = threading.Event()
        self._join_seconds = join_seconds
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._on_stop: list[Callable[[], None]] = []
        self._failure: BaseException | None = None

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the group stops, to wake threads that wait for something.

        It may be called more than once, and from any thread of the group.
        """
        self._on_stop.append(wake)

    def start(self, name: str, target: Callable[[], None]) -> None:
        """Run ``target`` in a new thread."""
        # A daemon, so that an environment that hangs does not keep the process from ending.
        thread = threading.Thread(target=self._run, args=(target,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Ask all threads to end."""
        self.stopping.set()
        for wake in self._on_stop:
            wake()

    def check(self) -> None:
        """Raise the first failure if there was one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop, wait for all threads to end, and raise the first failure if there was one."""
        self.stop()
        deadline = time.monotonic() + self._join_seconds  # For all threads together.
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            warnings.warn(
                f"threads {alive} did not end within {self._join_seconds} s; an environment may "
                "hang in a step",
                RuntimeWarning,
                stacklevel=2,
            )
        self.check()

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        except ShutDown:
            pass
        except BaseException as error:
            with self._lock:
                # Once the threads are stopping, failures are consequences, and not the cause.
                if self._failure is None and not self.stopping.is_set():
                    self._failure = error
            self.stop()


def give_way() -> None:
    """Lower the priority of this thread, and of the threads that it will start.

    The environments of an actor then use the time that the learner leaves. Without this they would
    hold up the learner: an operation on a CPU is done only when the last of its cores is.
    """
    # Only on Linux does a thread have a priority of its own; its new threads inherit it.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, niceness + _WAY)


def wait_until_ready(arrays: object, poll: Callable[[], None], interval: float = 5e-4) -> None:
    """Wait for arrays to be computed, and call ``poll`` every ``interval`` seconds meanwhile."""
    # Not jax.block_until_ready, which does not return for a signal or a failure in another thread.
    for leaf in jax.tree.leaves(arrays):
        # A learner of the user's own may log numbers of Python or NumPy.
        is_ready = getattr(leaf, "is_ready", lambda: True)
        while not is_ready():
            poll()
            time.sleep(interval)
