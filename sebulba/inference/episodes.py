"""Returns and lengths of episodes, counted on the host."""

from __future__ import annotations

import numpy as np

from sebulba.types import Timestep


class EpisodeTracker:
    """Sums the rewards of the episodes of B environments, as the environments return them.

    An episode counts as ended at the first timestep of the next one. So it does not matter whether
    it was terminated or truncated, or what the environment says by ``discount``.

    Attributes:
      returns: float64 ``[B]``, of the episodes that have not ended.
      lengths: int64 ``[B]``, their agent steps.
    """

    def __init__(self, timestep: Timestep) -> None:
        """``timestep`` is what ``Env.reset`` returned, ``[B]``."""
        # float64, because in float32 a long sum of small rewards loses digits.
        self.returns = np.zeros(timestep.first.shape, np.float64)
        self.lengths = np.zeros(timestep.first.shape, np.int64)
        self._ended: list[tuple[float, int]] = []

    def update(self, timestep: Timestep) -> None:
        """Add the next timestep ``[B]``."""
        if timestep.first.any():
            self._end(np.flatnonzero(timestep.first))
        self.returns += timestep.reward
        self.lengths += ~timestep.first  # The reset is not a step of any episode.

    def ended(self) -> list[tuple[float, int]]:
        """Return (return, length in agent steps) of the episodes ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, envs: np.ndarray) -> None:
        self._ended += zip(self.returns[envs].tolist(), self.lengths[envs].tolist(), strict=True)
        self.returns[envs] = 0.0
        self.lengths[envs] = 0
