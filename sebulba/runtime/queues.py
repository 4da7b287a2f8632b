"""Bounded hand-over of trajectories from actor threads to the learner."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ShutDown(Exception):
    """The queue was shut down: stop waiting and return."""


class TrajectoryQueue(Generic[Item]):
    """One bounded first-in first-out lane for each actor.

    The learner names the lane that it takes from, so the order of its data is the order of the
    lanes and never that of the threads. After ``shutdown`` every call, blocked or new, raises
    ``ShutDown``.
    """

    def __init__(self, num_lanes: int, capacity: int) -> None:
        """``num_lanes`` lanes of at most ``capacity`` items."""
        self._lock = threading.Lock()
        self._changed = [threading.Condition(self._lock) for _ in range(num_lanes)]
        self._lanes: list[deque[Item]] = [deque() for _ in range(num_lanes)]
        self._capacity = capacity
        self._down = False

    def put(self, lane: int, item: Item) -> None:
        """Append to ``lane``, waiting while it is full.

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

    def get(self, lane: int, timeout: float | None = None) -> Item:
        """Take the oldest item of ``lane``, waiting while it is empty.

        Raises:
          ShutDown: the queue was shut down; what it held is gone.
          TimeoutError: nothing came within ``timeout`` seconds.
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

    def shutdown(self) -> None:
        """Wake every waiting call with ``ShutDown`` and drop what is held."""
        with self._lock:
            self._down = True
            for lane, changed in zip(self._lanes, self._changed, strict=True):
                lane.clear()
                changed.notify_all()

    def is_down(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._down
