"""Which actions an actor took, counted on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sebulba.envs.base import finite_bounds
from sebulba.types import ActionSpec, BoxSpec, DiscreteSpec, Histogram, MultiDiscreteSpec, Timestep

_MOST_CHOICES = 100
"""A bin for each choice, up to so many: where there are more, neighbors share one."""
_BINS = 20
"""For each continuous action, from its lower to its upper bound."""


class ActionCounter:
    """Counts the actions of B environments, without those that an environment ignored to reset."""

    def __init__(self, spec: ActionSpec) -> None:
        """``spec`` is that of the environments."""
        self._ranges = _ranges(spec)
        # Counted once for each unroll, which takes a fraction of the time of counting each step.
        self._actions: list[np.ndarray] = []

    def update(self, action: np.ndarray, timestep: Timestep) -> None:
        """Add actions ``[B, ...]``; ``timestep`` ``[B]`` is what the environments returned."""
        self._actions.append(action[~timestep.first])

    def taken(self) -> dict[str, Histogram]:
        """One histogram for each action of an environment, of those since the last call."""
        actions, self._actions = np.concatenate(self._actions), []
        columns = actions.reshape(len(actions), len(self._ranges)).T
        return {
            range_.name: _histogram(column, range_)
            for column, range_ in zip(columns, self._ranges, strict=True)
        }


class _Range(NamedTuple):
    name: str
    bins: int
    low: float
    high: float


def _ranges(spec: ActionSpec) -> list[_Range]:
    match spec:
        case DiscreteSpec(number):
            return [_choices("action", number)]
        case MultiDiscreteSpec(numbers):
            return [_choices(f"action_{i}", number) for i, number in enumerate(numbers)]
        case BoxSpec(low, high):
            # On a side without a bound, what is beyond the last bin is counted in it.
            bounds = (bound.ravel().tolist() for bound in finite_bounds(low, high))
            pairs = enumerate(zip(*bounds, strict=True))
            return [_Range(f"action_{i}", _BINS, *pair) for i, pair in pairs]


def _choices(name: str, number: int) -> _Range:
    return _Range(name, min(number, _MOST_CHOICES), -0.5, number - 0.5)


def _histogram(values: Any, range_: _Range) -> Histogram:
    # An action may exceed its bounds by a rounding. NaN is counted nowhere.
    clipped = np.clip(values, range_.low, range_.high)
    counts, edges = np.histogram(clipped, range_.bins, (range_.low, range_.high))
    return Histogram(edges, counts)
