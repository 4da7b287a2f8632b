"""Environments without chance, so that a whole run can be compared with one in pieces."""

from __future__ import annotations

import numpy as np

from sebulba import ArraySpec, DiscreteSpec, EnvSpec, Timestep

PERIOD = 5
"""Steps from one reset to the next: the length of an unroll, so that every checkpoint is at one."""


class Clockwork:
    """Episodes that depend on the actions alone, and begin when an unroll does."""

    def __init__(self, num_envs: int, seed: int, offset: int = 0) -> None:
        """``offset``: the number of the first of these environments among those of all hosts."""
        self._num_envs = num_envs
        self._numbers = offset + np.arange(num_envs)
        self._time = 0
        self._last = np.zeros(num_envs, np.int32)

    @property
    def spec(self) -> EnvSpec:
        observation = ArraySpec((3,), np.dtype(np.float32))
        return EnvSpec(observation, DiscreteSpec(3), self._num_envs)

    def _timestep(self, reward: np.ndarray) -> Timestep:
        observation = np.zeros((self._num_envs, 3), np.float32)
        observation[:, 0], observation[:, 1] = self._time, self._last
        observation[:, 2] = self._numbers
        first = np.full(self._num_envs, self._time == 0)
        discount = np.full(self._num_envs, self._time != PERIOD - 1, np.float32)
        return Timestep(observation, reward.astype(np.float32), discount, first)

    def reset(self) -> Timestep:
        self._time, self._last = 0, np.zeros(self._num_envs, np.int32)
        return self._timestep(np.zeros(self._num_envs))

    def step(self, action: np.ndarray) -> Timestep:
        self._time = (self._time + 1) % PERIOD
        if self._time == 0:
            return self.reset()
        reward = action == (self._time + self._last + self._numbers) % 3
        self._last = np.array(action, np.int32)
        return self._timestep(reward)

    def close(self) -> None:
        pass
