"""Catch: a small environment in which an agent has to act on what it observes."""

from __future__ import annotations

from typing import Any

import numpy as np

from sebulba.envs.base import EpisodeClock
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep

ROWS, COLUMNS = 10, 5


class Catch:
    """A ball falls from a random column by one row in each step, and a paddle has to catch it.

    The game is that of bsuite (Osband et al., 2020, "Behaviour Suite for Reinforcement Learning").
    Observations are float32 ``[B, 10, 5]``: 1 where the ball or the paddle is, 0 elsewhere.
    Actions: 0 left, 1 stay, 2 right. Episodes terminate after 9 steps, with a reward of +1 if the
    paddle is under the ball and -1 if not. All other rewards are 0.
    """

    def __init__(self, num_envs: int, seed: int) -> None:
        self._clock = EpisodeClock(num_envs, length=ROWS - 1)
        self._rng = np.random.default_rng(seed)
        self._ball = np.zeros(num_envs, np.int64)
        self._paddle = np.zeros(num_envs, np.int64)
        self._spec = EnvSpec(
            observation=ArraySpec((ROWS, COLUMNS), np.dtype(np.float32)),
            action=DiscreteSpec(3),
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
        self._ball[first] = self._rng.integers(COLUMNS, size=first.sum())
        moved = np.clip(self._paddle + action - 1, 0, COLUMNS - 1)
        self._paddle = np.where(first, COLUMNS // 2, moved)
        caught = np.where(self._ball == self._paddle, 1, -1)
        return Timestep(
            observation=self._observation(),
            reward=np.where(last, caught, 0).astype(np.float32),
            discount=np.where(last, 0, 1).astype(np.float32),
            first=first,
        )

    def close(self) -> None:
        pass

    def _observation(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        env = np.arange(self._spec.num_envs)
        # A new array each time: the one returned before may still be in use.
        board = np.zeros((self._spec.num_envs, ROWS, COLUMNS), np.float32)
        board[env, self._clock.time, self._ball] = 1  # The ball's row is the time.
        board[env, ROWS - 1, self._paddle] = 1
        return board
