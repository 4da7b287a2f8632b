"""The schedule against lanes that are dealt one unroll at a time."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import deque

import pytest

from sebulba.runtime.schedule import Schedule

TURNS = 12
SIZES = list(itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7)))
"""(lanes, unrolls in one turn): divisible, not divisible, and more unrolls than lanes."""


def deal(lanes: int, per_turn: int) -> list[list[tuple[int, int]]]:
    """(lane, unroll) of each turn: round robin over lanes, taking each lane in its order."""
    nexts = [itertools.count() for _ in range(lanes)]
    turn = itertools.cycle(range(lanes))
    return [[(lane, next(nexts[lane])) for lane in take(turn, per_turn)] for _ in range(TURNS)]


def take(source: itertools.cycle[int], count: int) -> list[int]:
    return list(itertools.islice(source, count))


@pytest.mark.parametrize(("lanes", "per_turn"), SIZES)
def test_turns_take_from_lanes_round_robin(lanes: int, per_turn: int) -> None:
    schedule = Schedule(lanes, per_turn, 0, "any")
    expected = [[lane for lane, _ in turn] for turn in deal(lanes, per_turn)]
    assert [schedule.lanes_of(turn) for turn in range(TURNS)] == expected


@pytest.mark.parametrize(("lanes", "per_turn"), SIZES)
def test_a_resumed_run_goes_on_where_the_first_one_stopped(lanes: int, per_turn: int) -> None:
    dealt = deal(lanes, per_turn)
    for done in range(TURNS):
        schedule = Schedule(lanes, per_turn, done, "any")
        taken = [lane for turn in dealt[:done] for lane, _ in turn]
        assert [schedule.first_unroll(lane) for lane in range(lanes)] == [
            taken.count(lane) for lane in range(lanes)
        ]
        assert schedule.lanes_of(done) == [lane for lane, _ in dealt[done]]


@pytest.mark.parametrize(("lanes", "per_turn"), SIZES)
def test_versions_are_as_old_as_asked(lanes: int, per_turn: int) -> None:
    for done, lag in itertools.product((0, 5), (0, 1)):
        schedule = Schedule(lanes, per_turn, done, "01"[lag])
        for turn, unrolls in list(enumerate(deal(lanes, per_turn)))[done:]:
            expected = max(done, turn - lag)
            assert {schedule.version_of(*unroll) for unroll in unrolls} == {expected}
            # A run that is resumed with the version before its first turn.
            older = dataclasses.replace(schedule, oldest=done - 1)
            if done:
                assert {older.version_of(*unroll) for unroll in unrolls} == {turn - lag}
    assert Schedule(lanes, per_turn, 0, "any").version_of(0, 3) is None


class System:
    """Actors, bounded lanes, the two last versions and a learner, moved one at a time."""

    def __init__(self, schedule: Schedule, capacity: int) -> None:
        self.schedule = schedule
        self.capacity = capacity
        self.turns = schedule.first_turn
        self.lanes: list[deque[int]] = [deque() for _ in range(schedule.lanes)]
        self.unrolls = [schedule.first_unroll(lane) for lane in range(schedule.lanes)]
        self.acting: list[int | None] = [None] * schedule.lanes
        self.taken: list[int] = []
        self.lags: list[int] = []

    def moves(self) -> list[int]:
        """Lanes whose actor can move, and -1 where the learner can."""
        lanes = range(self.schedule.lanes)
        return [lane for lane in lanes if self._actor_can_move(lane)] + [-1] * self._can_learn()

    def move(self, mover: int) -> None:
        if mover == -1:
            self._learn()
        elif self.acting[mover] is None:
            version = self._asked(mover)
            assert version > self.turns - 2, "a version that the slot may have dropped"
            self.acting[mover] = version
        else:
            self.lanes[mover].append(self.acting[mover])
            self.acting[mover] = None
            self.unrolls[mover] += 1

    def _asked(self, lane: int) -> int:
        version = self.schedule.version_of(lane, self.unrolls[lane])
        return self.turns if version is None else version

    def _actor_can_move(self, lane: int) -> bool:
        if self.acting[lane] is None:
            return self._asked(lane) <= self.turns
        return len(self.lanes[lane]) < self.capacity

    def _next_lane(self) -> int:
        return self.schedule.lanes_of(self.turns)[len(self.taken)]

    def _can_learn(self) -> bool:
        return bool(self.lanes[self._next_lane()])

    def _learn(self) -> None:
        self.taken.append(self.lanes[self._next_lane()].popleft())
        if len(self.taken) == self.schedule.per_turn:
            self.lags += [self.turns - version for version in self.taken]
            self.taken = []
            self.turns += 1


@pytest.mark.parametrize("lag", ["any", "0", "1"])
@pytest.mark.parametrize("first_turn", [0, 5])
@pytest.mark.parametrize("capacity", [1, 3])
def test_nobody_waits_for_ever(lag: str, first_turn: int, capacity: int) -> None:
    rng = random.Random(f"{lag}/{first_turn}/{capacity}")
    for lanes, per_turn in SIZES:
        system = System(Schedule(lanes, per_turn, first_turn, lag), capacity)
        while system.turns < first_turn + TURNS:
            moves = system.moves()
            assert moves, f"deadlock at turn {system.turns} of {system.schedule}"
            # Now and then one mover is far ahead of the others.
            system.move(
                rng.choice(moves) if rng.random() < 0.5 else rng.choice((moves[0], moves[-1]))
            )
        if lag != "any":
            start = per_turn if lag == "1" else 0
            assert set(system.lags[start:]) == {int(lag)} and not any(system.lags[:start])
