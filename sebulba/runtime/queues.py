"""The bounded queue through which actor threads pass trajectories to the learner."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ShutDown(Exception):
    """Raised in threads that wait when the run ends: they should stop, without an error."""


class TrajectoryQueue(Generic[Item]):
    """One bounded first-in-first-out lane for each actor.

    The learner names the lane that it takes from. So the order of its data does not depend on which
    thread is faster, as it would with a single queue. Only where lanes may be lost does it take
    from whichever has something. After ``shutdown``, all calls raise
    ``ShutDown``, including those that are waiting.
    """

    def __init__(self, num_lanes: int, capacity: int) -> None:
        """Make ``num_lanes`` empty lanes of at most ``capacity`` items."""
        # One lock for all, and a condition for each lane, so that only those who use the lane wake.
        self._lock = threading.Lock()
        self._changed = [threading.Condition(self._lock) for _ in range(num_lanes)]
        self._arrived = threading.Condition(self._lock)
        self._next = 0  # The lane whose turn it is in ``get_any``.
        self._lanes: list[deque[Item]] = [deque() for _ in range(num_lanes)]
        self._capacity = capacity
        self._down = False

    def put(self, lane: int, item: Item) -> None:
        """Wait while ``lane`` is full, then append ``item``.

        Raises:
          ShutDown: the queue was shut down.
        """
        with self._changed[lane]:
            self._changed[lane].wait_for(
                lambda: self._down or len(self._lanes[lane]) < self._capacity
            )
            if self._down:
                raise ShutDown
            self._lanes[lane].append(item)
            self._changed[lane].notify_all()
            self._arrived.notify_all()

    def get(self, lane: int, timeout: float | None = None) -> Item:
        """Wait while ``lane`` is empty, then take its oldest item.

        Raises:
          ShutDown: the queue was shut down, and its items are gone.
          TimeoutError: the lane was empty for ``timeout`` seconds.
        """
        with self._changed[lane]:
            if not self._changed[lane].wait_for(
                lambda: self._down or bool(self._lanes[lane]), timeout
            ):
                raise TimeoutError
            if self._down:
                raise ShutDown
            item = self._lanes[lane].popleft()
            self._changed[lane].notify_all()
            return item

    def get_any(self, timeout: float | None = None) -> Item:
        """Wait while all lanes are empty, then take the oldest item of one of them.

        Lanes that have items take turns.

        Raises:
          ShutDown: the queue was shut down, and its items are gone.
          TimeoutError: all lanes were empty for ``timeout`` seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._down or any(self._lanes), timeout):
                raise TimeoutError
            if self._down:
                raise ShutDown
            while not self._lanes[self._next]:
                self._next = (self._next + 1) % len(self._lanes)
            lane, self._next = self._next, (self._next + 1) % len(self._lanes)
            item = self._lanes[lane].popleft()
            self._changed[lane].notify_all()
            return item

    def shutdown(self) -> None:
        """Raise ``ShutDown`` in all waiting calls, and drop all items."""
        with self._lock:
            self._down = True
            for lane, changed in zip(self._lanes, self._changed, strict=True):
                lane.clear()  # Trajectories hold memory of the devices.
                changed.notify_all()
            self._arrived.notify_all()

    def is_down(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._down  # Without the lock: actors ask in every step, and it is a single read.
