"""Exploration with a parameter for each environment of a run, which may change with time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sebulba.inference.program import Explore


class Exploration(NamedTuple):
    """How some of the agent's actions are replaced.

    Attributes:
      explore: the function that replaces them; it runs on the inference device.
      epsilons: its argument, float32 ``[N]``, for the N environments of all hosts, when this share
        of ``total_steps`` is done.
    """

    explore: Explore
    epsilons: Callable[[float], np.ndarray]

    def of_actor(self, number: int, num_envs: int) -> Callable[[float], np.ndarray]:
        """Return ``epsilons`` for the ``num_envs`` of actor ``number``, counted over all hosts."""
        part = slice(number * num_envs, (number + 1) * num_envs)
        return lambda progress: self.epsilons(progress)[part]


def linear_epsilon(progress: float, start: float, end: float, until: float) -> float:
    """Return epsilon when a share ``progress`` of ``total_steps`` is done.

    It goes from ``start`` to ``end`` linearly, where it arrives at the share ``until``.
    """
    return end if progress >= until else start + (end - start) * progress / until


def epsilon_ladder(num_envs: int, base: float = 0.4, alpha: float = 7.0) -> np.ndarray:
    """Return eps_i = base^(1 + alpha i / (N - 1)) for i = 0, ..., N - 1, float32 ``[N]``.

    From Horgan et al. (2018), "Distributed Prioritized Experience Replay", section 4.1.

    Args:
      num_envs: N, the number of environments of all hosts.
      base: the largest epsilon, that of environment 0.
      alpha: how fast the others fall, to base^(1 + alpha) in the last environment.
    """
    # A single environment gets the largest epsilon, where the formula would divide 0 by 0.
    ladder = np.linspace(0.0, 1.0, num_envs) if num_envs > 1 else np.zeros(1)
    return (base ** (1.0 + alpha * ladder)).astype(np.float32)
