"""Which lanes each turn of the learner takes from, and which parameters each unroll acts with."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The fixed order in which unrolls reach the learner.

    In one turn the learner takes ``per_turn`` unrolls, makes the updates that are due, and
    publishes the parameters. Their version is the number of turns completed so far. Unroll i of
    lane n has position i * lanes + n, and turn k takes the positions from k * per_turn to
    (k + 1) * per_turn - 1. Nothing here depends on time.

    Attributes:
      lanes: number of actors on this host.
      per_turn: unrolls in one turn.
      first_turn: number of the first turn: how many the run that is resumed has completed, or 0.
      lag: how many turns old the parameters of an unroll are in the turn that takes it, or "any".
      oldest: the oldest version of the parameters that there is; None: that of the first turn.
    """

    lanes: int
    per_turn: int
    first_turn: int
    lag: Literal["any", "0", "1"]
    oldest: int | None = None

    def lanes_of(self, turn: int) -> list[int]:
        """Return the lanes from which ``turn`` takes one unroll each, in order."""
        start = turn * self.per_turn
        return [position % self.lanes for position in range(start, start + self.per_turn)]

    def first_unroll(self, lane: int) -> int:
        """Return the number of the first unroll of ``lane`` in this run."""
        # The smallest i with i * lanes + lane >= first_turn * per_turn: -(-a // b) rounds a / b up.
        return -((lane - self.first_turn * self.per_turn) // self.lanes)

    def version_of(self, lane: int, unroll: int) -> int | None:
        """Return the version of the parameters to act with, or None for the newest."""
        if self.lag == "any":
            return None
        # Turn k starts with version k.
        turn = (unroll * self.lanes + lane) // self.per_turn
        oldest = self.first_turn if self.oldest is None else self.oldest
        return max(oldest, turn - int(self.lag))
