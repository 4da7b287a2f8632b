"""Lanes are bounded, ordered and independent, and no call waits for ever."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pytest

from sebulba.runtime.queues import ShutDown, TrajectoryQueue

SOON = 10.0
"""Seconds within which a call that can return must have."""
A_WHILE = 0.05
"""Seconds in which a call that cannot return would have, if it could."""


class Call:
    """A call in another thread, and what came of it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.outcome: object = None
        self._function = function
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def waits(self) -> bool:
        self._thread.join(A_WHILE)
        return self._thread.is_alive()

    def result(self) -> object:
        self._thread.join(SOON)
        assert not self._thread.is_alive()
        return self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._function()
        except Exception as error:
            self.outcome = type(error)


def test_each_lane_is_first_in_first_out() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue(2, capacity=3)
    for item in ("b0", "a0", "a1", "b1", "a2"):
        queue.put("ab".index(item[0]), item)
    assert [queue.get(0) for _ in range(3)] == ["a0", "a1", "a2"]
    assert [queue.get(1) for _ in range(2)] == ["b0", "b1"]


@pytest.mark.parametrize("capacity", [1, 2])
def test_put_waits_while_its_lane_is_full(capacity: int) -> None:
    queue: TrajectoryQueue[int] = TrajectoryQueue(2, capacity)
    for i in range(capacity):
        queue.put(0, i)
    put = Call(lambda: queue.put(0, capacity))
    assert put.waits()
    queue.put(1, -1)
    assert queue.get(1) == -1
    assert put.waits()
    assert [queue.get(0) for _ in range(capacity + 1)] == list(range(capacity + 1))
    put.result()


def test_get_waits_for_its_own_lane() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue(2, capacity=1)
    get = Call(lambda: queue.get(0))
    queue.put(1, "other")
    assert get.waits()
    queue.put(0, "own")
    assert get.result() == "own"


def test_any_lane_will_do_and_those_with_items_take_turns() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue(3, capacity=2)
    for item in ("a0", "a1", "c0", "c1"):
        queue.put("abc".index(item[0]), item)
    assert [queue.get_any() for _ in range(3)] == ["a0", "c0", "a1"]
    queue.put(1, "b0")
    assert [queue.get_any() for _ in range(2)] == ["b0", "c1"]
    with pytest.raises(TimeoutError):
        queue.get_any(timeout=0.01)
    get = Call(queue.get_any)
    assert get.waits()
    queue.put(1, "b1")
    assert get.result() == "b1"


def test_taking_from_any_lane_makes_room_in_it() -> None:
    queue: TrajectoryQueue[int] = TrajectoryQueue(2, capacity=1)
    queue.put(1, 0)
    put = Call(lambda: queue.put(1, 1))
    assert put.waits()
    assert queue.get_any() == 0
    put.result()


def test_get_times_out_and_can_be_tried_again() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue(1, capacity=1)
    with pytest.raises(TimeoutError):
        queue.get(0, timeout=0.01)
    queue.put(0, "late")
    assert queue.get(0, timeout=0.01) == "late"


def test_shutdown_wakes_every_waiting_call() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue(3, capacity=1)
    queue.put(0, "full")
    calls = [Call(lambda: queue.put(0, "more")), Call(lambda: queue.put(0, "still more"))]
    calls += [Call(lambda: queue.get(1)), Call(lambda: queue.get(2, timeout=SOON))]
    assert all(call.waits() for call in calls)
    queue.shutdown()
    assert [call.result() for call in calls] == [ShutDown] * 4


def test_shutdown_wakes_who_waits_for_any_lane() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue(2, capacity=1)
    call = Call(queue.get_any)
    assert call.waits()
    queue.shutdown()
    assert call.result() is ShutDown


def test_after_shutdown_every_call_raises_and_nothing_is_held() -> None:
    class Item:
        pass

    queue: TrajectoryQueue[Item] = TrajectoryQueue(1, capacity=1)
    item = Item()
    held = weakref.ref(item)
    queue.put(0, item)
    del item
    assert held() is not None and not queue.is_down()
    queue.shutdown()
    queue.shutdown()
    assert held() is None and queue.is_down()
    with pytest.raises(ShutDown):
        queue.get(0)
    with pytest.raises(ShutDown):
        queue.put(0, Item())


def test_many_producers_one_consumer_lose_and_reorder_nothing() -> None:
    lanes, items = 4, 200
    queue: TrajectoryQueue[int] = TrajectoryQueue(lanes, capacity=2)

    def produce(lane: int) -> Callable[[], None]:
        return lambda: [queue.put(lane, i) for i in range(items)] and None

    producers = [Call(produce(lane)) for lane in range(lanes)]
    got = [[queue.get(lane, SOON) for lane in range(lanes)] for _ in range(items)]
    assert got == [[i] * lanes for i in range(items)]
    assert [producer.result() for producer in producers] == [None] * lanes
