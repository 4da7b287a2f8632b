"""What the learner takes from the lanes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from sebulba.inference import actor_name
from sebulba.metrics.meter import Row
from sebulba.runners.parts import Remote
from sebulba.runtime.activity import Activity
from sebulba.runtime.queues import TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.runtime.threads import POLL_SECONDS, ThreadGroup
from sebulba.types import Unroll


class Intake:
    """The learner's end of the lanes: their unrolls, and the env-hosts of remote lanes.

    A wait calls its ``poll`` often, which may raise. (Kept here, it would make a circle with the
    run that it belongs to, and what that has on devices would stay after training.)

    Args:
      queue: of the unrolls of all lanes.
      schedule: says which lanes have a part in a turn.
      remote: None without remote lanes.
      any_order: with remote lanes, a turn takes its unrolls from whichever lanes have some, local
        ones included, so that lanes which are lost hold nobody up.
      activity: where the learner notes what it waits for.
    """

    def __init__(
        self,
        queue: TrajectoryQueue[Unroll],
        schedule: Schedule,
        remote: Remote | None,
        any_order: bool,
        activity: Activity,
    ) -> None:
        self._queue = queue
        self._schedule = schedule
        self._remote = remote
        self._any_order = any_order and remote is not None
        self._now = activity

    @contextlib.contextmanager
    def listening(self, group: ThreadGroup, is_complete: Callable[[], bool]) -> Iterator[None]:
        """Take connections of env-hosts inside the context, until ``group`` stops.

        At the end, env-hosts are told whether the run ``is_complete``, which ends them too.
        """
        if self._remote is None:
            yield
            return
        listener = self._remote.listener
        group.on_stop(listener.shutdown)
        listener.open()
        complete = False
        try:
            yield
            complete = is_complete()
        finally:
            listener.close(complete)

    def wait_for_lanes(
        self, poll: Callable[[], None], is_asked_to_stop: Callable[[], bool]
    ) -> None:
        """Wait until as many env-hosts are connected as learning should start with."""
        while self._remote is not None:
            missing = self._remote.min_lanes - self._remote.listener.connected()
            if missing <= 0:
                return
            # That may take for as long as a cluster needs, so nothing stands still here, but for
            # one that was asked to stop.
            if not is_asked_to_stop():
                self._now.set(f"waiting for the env-hosts of {missing} lanes")
            poll()
            time.sleep(POLL_SECONDS)

    def take(self, turn: int, poll: Callable[[], None]) -> list[Unroll]:
        """The unrolls of a turn."""
        lanes = self._schedule.lanes_of(turn)
        if self._any_order:
            return [self._take_any(poll) for _ in lanes]
        return [self._take_from(lane, poll) for lane in lanes]

    def news(self) -> list[str]:
        """Lines about env-hosts that came or went since the last call."""
        return [] if self._remote is None else list(self._remote.listener.news())

    def metrics(self) -> Row:
        """Those of remote lanes, if there are any."""
        return {} if self._remote is None else dict(self._remote.listener.metrics())

    def _take_from(self, lane: int, poll: Callable[[], None]) -> Unroll:
        actor = actor_name(lane)
        self._now.set(f"waiting for {actor}", waits_for=actor)
        return _polling(lambda: self._queue.get(lane, POLL_SECONDS), poll)

    def _take_any(self, poll: Callable[[], None]) -> Unroll:
        assert self._remote is not None
        connected = self._remote.listener.connected()
        self._now.set(f"waiting for any actor, with {connected} remote lanes connected,")
        return _polling(lambda: self._queue.get_any(POLL_SECONDS), poll)


def _polling(get: Callable[[], Unroll], poll: Callable[[], None]) -> Unroll:
    """What ``get`` returns, which waits shortly, so that an interrupt is noticed meanwhile."""
    while True:
        try:
            return get()
        except TimeoutError:
            poll()
