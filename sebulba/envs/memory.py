"""Memory: a task in which agents without a recurrent state can only guess."""

from __future__ import annotations

from typing import Any

import numpy as np

from sebulba.envs.base import EpisodeClock
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep


class Memory:
    """A cue is shown once, at the start, and after a delay the agent has to answer with its number.

    It is similar to memory_len of bsuite (Osband et al., 2020, "Behaviour Suite for Reinforcement
    Learning"). Observations are float32 ``[B, num_cues + 1]``: the cue, one-hot, in the first
    timestep, then ``delay`` timesteps of zeros, then the query (1 in the last place), then zeros in
    the last timestep. Actions are 0, ..., num_cues - 1. Only the action at the query matters: its
    reward is +1 if it is the cue and -1 if not. With two cues, guessing has a mean return of 0.

    Args:
      num_envs: B, at least 1.
      seed: seed of the random cues.
      num_cues: at least 2.
      delay: at least 0.

    Raises:
      ValueError: an argument is out of range.
    """

    def __init__(self, num_envs: int, seed: int, *, num_cues: int = 2, delay: int = 10) -> None:
        if not isinstance(num_cues, int) or num_cues < 2:
            raise ValueError(f"num_cues is {num_cues!r}, but must be a whole number, 2 or more.")
        if not isinstance(delay, int) or delay < 0:
            raise ValueError(f"delay is {delay!r}, but must be a whole number of steps, 0 or more.")
        # Timesteps: the cue, the delay, the query and the last one. Steps are one fewer.
        self._clock = EpisodeClock(num_envs, length=delay + 2)
        self._rng = np.random.default_rng(seed)
        self._cue = np.zeros(num_envs, np.int64)
        self._num_cues = num_cues
        self._spec = EnvSpec(
            observation=ArraySpec((num_cues + 1,), np.dtype(np.float32)),
            action=DiscreteSpec(num_cues),
            num_envs=num_envs,
        )

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Timestep:
        # A step after the end of an episode starts the next one, and ignores the action.
        self._clock.end()
        return self.step(np.zeros(self._spec.num_envs, np.int32))

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        first, last = self._clock.tick()
        self._cue[first] = self._rng.integers(self._num_cues, size=first.sum())
        # The action before the last timestep is the one at the query.
        answer = np.where(action == self._cue, 1, -1)
        return Timestep(
            observation=self._observation(first),
            reward=np.where(last, answer, 0).astype(np.float32),
            discount=np.where(last, 0, 1).astype(np.float32),
            first=first,
        )

    def close(self) -> None:
        pass

    def _observation(self, first: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        observation = np.zeros((self._spec.num_envs, self._num_cues + 1), np.float32)
        observation[first, self._cue[first]] = 1
        observation[:, -1] = self._clock.time == self._clock.length - 1
        return observation
