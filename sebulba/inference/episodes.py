"""Returns and lengths of episodes, followed on the host."""

from __future__ import annotations

import numpy as np

from sebulba.types import Timestep


class EpisodeTracker:
    """Sums the true rewards of B environments' episodes.

    An episode has ended when the next one's first timestep comes, so termination, truncation
    and what an adapter does to ``discount`` make no difference.
    """

    def __init__(self, timestep: Timestep) -> None:
        """``timestep``: what ``Env.reset`` returned."""
        self._returns = np.zeros(timestep.first.shape, np.float64)
        self._lengths = np.zeros(timestep.first.shape, np.int64)
        self._ended: list[tuple[float, int]] = []

    def update(self, timestep: Timestep) -> None:
        """Take in the next timestep ``[B]``."""
        if timestep.first.any():
            self._end(np.flatnonzero(timestep.first))
        self._returns += timestep.reward
        self._lengths += ~timestep.first

    def ended(self) -> list[tuple[float, int]]:
        """(return, length in agent steps) of the episodes that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, envs: np.ndarray) -> None:
        self._ended += zip(self._returns[envs].tolist(), self._lengths[envs].tolist(), strict=True)
        self._returns[envs] = 0.0
        self._lengths[envs] = 0
