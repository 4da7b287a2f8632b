"""Memory: a task at chance for every agent without a recurrent state."""

from __future__ import annotations

from typing import Any

import numpy as np

from sebulba.envs.base import EpisodeClock
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep


class Memory:
    """A cue is seen once, at the start; after a delay the agent must answer with its number.

    In the manner of bsuite's memory_len (Osband et al., 2020, "Behavior Suite for Reinforcement
    Learning"). Observation float32 ``[B, num_cues + 1]``: the cue one-hot in the first timestep,
    then ``delay`` timesteps of zeros, then the query (1 in the last place), then zeros. Only the
    action at the query counts: the reward on arriving at the last timestep is +1 if it is
    the cue and -1 if not. Actions: 0 .. num_cues - 1. With two cues the mean return of chance is 0.
    """

    def __init__(self, num_envs: int, seed: int, *, num_cues: int = 2, delay: int = 10) -> None:
        if not isinstance(num_cues, int) or num_cues < 2:
            raise ValueError(f"num_cues is {num_cues!r}, but must be a whole number, 2 or more.")
        if not isinstance(delay, int) or delay < 0:
            raise ValueError(f"delay is {delay!r}, but must be a whole number of steps, 0 or more.")
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
        self._clock.end()
        return self.step(np.zeros(self._spec.num_envs, np.int32))

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        first, last = self._clock.tick()
        self._cue[first] = self._rng.integers(self._num_cues, size=first.sum())
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
