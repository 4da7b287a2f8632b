"""Which lane each turn takes from, and which parameters each unroll acts on."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The fixed order in which unrolls reach the learner.

    In one turn the learner takes ``per_turn`` unrolls, does the updates that they make due, and
    publishes parameters, whose version is the number of turns behind them. Unroll i of lane n has
    the position i * lanes + n; turn k takes the positions from k * per_turn to
    (k + 1) * per_turn - 1. Nothing here depends on time.

    Attributes:
      lanes: actors of this host.
      per_turn: unrolls in one turn.
      first_turn: turns already done, by the run that this one resumes.
      lag: "any", or how many turns old the parameters of an unroll must be.
    """

    lanes: int
    per_turn: int
    first_turn: int
    lag: Literal["any", "0", "1"]

    def lanes_of(self, turn: int) -> list[int]:
        """The lanes that ``turn`` takes one unroll each from, in order."""
        start = turn * self.per_turn
        return [position % self.lanes for position in range(start, start + self.per_turn)]

    def first_unroll(self, lane: int) -> int:
        """Number of the first unroll of ``lane`` that is still to come."""
        return -((lane - self.first_turn * self.per_turn) // self.lanes)

    def version_of(self, lane: int, unroll: int) -> int | None:
        """The version of the parameters to act on; None for the newest."""
        if self.lag == "any":
            return None
        turn = (unroll * self.lanes + lane) // self.per_turn
        return max(self.first_turn, turn - int(self.lag))
