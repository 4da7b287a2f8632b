"""Sampling in proportion to priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Drawn(NamedTuple):
    """Indices ``[n]`` and the probability ``[n]`` with which each was drawn."""

    indices: np.ndarray
    probabilities: np.ndarray


class Priorities:
    """Non-negative numbers ``[N]``, drawn from in proportion to their powers.

    A plain cumulative sum for each draw: at 100,000 sequences it takes a fraction of a
    millisecond (``benchmarks/replay.py``), and a sum tree would have to be kept up to date.
    """

    def __init__(self, size: int, exponent: float) -> None:
        """``size`` zeros, which are never drawn."""
        self._exponent = exponent
        self._powers = np.zeros(size, np.float64)

    @property
    def powers(self) -> np.ndarray:
        """The priorities to the power of the exponent, ``[N]``; a view."""
        return self._powers

    def state(self) -> dict[str, np.ndarray]:
        """The priorities to the power of the exponent, ``[N]``, and the exponent; copies."""
        return {"powers": self._powers.copy(), "exponent": np.array(self._exponent)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Set what ``state`` returned, perhaps with another exponent; one of 0 tells nothing."""
        exponent = float(state.get("exponent", np.array(self._exponent)))
        there = state["powers"] > 0
        change = self._exponent / exponent if exponent else 1.0
        self._powers[:] = np.where(there, state["powers"] ** change, 0.0)

    def set(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        """Set priorities; a sequence without any TD error still keeps a small chance.

        One that is not finite would be all that is ever drawn.
        """
        finite = np.clip(np.nan_to_num(priorities), _SMALLEST, _LARGEST)
        self._powers[indices] = finite**self._exponent

    def clear(self, indices: np.ndarray) -> None:
        """Never draw ``indices`` until they are set again."""
        self._powers[indices] = 0.0

    def draw(self, count: int, random: np.random.Generator) -> Drawn:
        """``count`` indices with replacement, one from each of ``count`` equal parts of the sum.

        Schaul et al. (2016), "Prioritized Experience Replay", appendix B.2.1.
        """
        sums = np.cumsum(self._powers)
        total = sums[-1]
        targets = (np.arange(count) + random.random(count)) * (total / count)
        # "right" skips zeros; rounding must not step over the last one that can be drawn.
        indices = np.searchsorted(sums, targets, side="right")
        last = np.searchsorted(sums, total, side="left")
        indices = np.minimum(indices, last)
        return Drawn(indices, self._powers[indices] / total)


_SMALLEST, _LARGEST = 1e-6, 1e6
