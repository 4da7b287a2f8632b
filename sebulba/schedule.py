"""Which lane each update takes from, and which parameters each unroll acts on."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The fixed order in which unrolls become updates.

    Unroll i of lane n has the position i * lanes + n; update k takes the positions from
    k * per_update to (k + 1) * per_update - 1. Nothing here depends on time.

    Attributes:
      lanes: actors of this host.
      per_update: unrolls in one update.
      first_update: updates already done, by the run that this one resumes.
      lag: "none", or how many updates old the parameters of an unroll must be.
    """

    lanes: int
    per_update: int
    first_update: int
    lag: Literal["none", "0", "1"]

    def lanes_of(self, update: int) -> list[int]:
        """The lanes that ``update`` takes one unroll each from, in order."""
        start = update * self.per_update
        return [position % self.lanes for position in range(start, start + self.per_update)]

    def first_unroll(self, lane: int) -> int:
        """Number of the first unroll of ``lane`` that is still to come."""
        return -((lane - self.first_update * self.per_update) // self.lanes)

    def version_of(self, lane: int, unroll: int) -> int | None:
        """The version of the parameters to act on; None for the newest."""
        if self.lag == "none":
            return None
        update = (unroll * self.lanes + lane) // self.per_update
        return max(self.first_update, update - int(self.lag))
