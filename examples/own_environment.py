"""An environment of your own, with a preset that solves it.

python examples/own_environment.py                        # from Python
cd examples && sebulba train own_environment:corridor     # with every option, --help, eval, pod
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tyro

import sebulba


class Corridor:
    """B corridors with a light at one end; walking to it is worth 1, and each step costs 0.01.

    Observation float32 ``[B, 2]``: place and light, both from -1 to 1. Actions: 0 left, 1 right.
    An episode terminates at the light, and is truncated after ``limit`` steps.
    """

    def __init__(self, num_envs: int, seed: int, *, length: int = 4, limit: int = 30) -> None:
        self.spec = sebulba.EnvSpec(
            observation=sebulba.ArraySpec((2,), np.dtype(np.float32)),
            action=sebulba.DiscreteSpec(2),
            num_envs=num_envs,
        )
        self._random = np.random.default_rng(seed)
        self._length, self._limit = length, limit
        self._place, self._light, self._time = np.zeros((3, num_envs), np.int64)
        self._over = np.ones(num_envs, bool)

    def reset(self) -> sebulba.Timestep:
        """Start a new episode everywhere."""
        self._over[:] = True
        return self.step(np.zeros(self.spec.num_envs, np.int32))

    def step(self, action: np.ndarray) -> sebulba.Timestep:
        """Walk; where an episode is over, start the next instead, and ignore the action."""
        first = self._over
        side = self._random.choice([-1, 1], size=first.shape)
        self._light = np.where(first, side * self._length, self._light)
        walked = np.clip(self._place + 2 * action - 1, -self._length, self._length)
        self._place = np.where(first, 0, walked)
        self._time = np.where(first, 0, self._time + 1)
        there = (self._place == self._light) & ~first
        self._over = there | (self._time == self._limit)
        reward = np.where(first, 0, there - 0.01)
        return sebulba.Timestep(
            observation=np.stack([self._place, self._light], -1).astype(np.float32) / self._length,
            reward=reward.astype(np.float32),
            discount=1 - there.astype(np.float32),  # 0 on termination, and 1 on truncation.
            first=first,
        )

    def close(self) -> None:
        """Nothing to free."""


sebulba.envs.register("Corridor", Corridor)

CORRIDOR = sebulba.VTraceConfig(
    preset="corridor",
    env="Corridor",
    total_steps=100_000,
    optimizer=sebulba.OptimizerConfig(name="adam", learning_rate=5e-3),
)
sebulba.presets.register(CORRIDOR, "A corridor with a light at one end.")


def main(total_steps: int = CORRIDOR.total_steps, seed: int = 0) -> float | None:
    """Train and return the mean return of the last 100 episodes; 0.96 is perfect."""
    config = dataclasses.replace(CORRIDOR, total_steps=total_steps, seed=seed)
    return sebulba.train(config).metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
