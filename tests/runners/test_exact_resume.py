"""With a fixed lag, a run that was interrupted ends with the bits of one that was not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from whole_runs import on, tiny, tiny_r2d2

import sebulba
from sebulba import (
    ArraySpec,
    CheckpointConfig,
    Config,
    DiscreteSpec,
    EnvSpec,
    ReplayCheckpointConfig,
    Timestep,
)

PERIOD = 5
"""Steps from one reset to the next: the length of an unroll, so that every checkpoint is at one."""


class Clockwork:
    """Episodes that depend on the actions alone, and begin when an unroll does."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self._num_envs = num_envs
        self._time = 0
        self._last = np.zeros(num_envs, np.int32)

    @property
    def spec(self) -> EnvSpec:
        observation = ArraySpec((3,), np.dtype(np.float32))
        return EnvSpec(observation, DiscreteSpec(3), self._num_envs)

    def _timestep(self, reward: np.ndarray) -> Timestep:
        observation = np.zeros((self._num_envs, 3), np.float32)
        observation[:, 0], observation[:, 1] = self._time, self._last
        observation[:, 2] = np.arange(self._num_envs)
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
        reward = action == (self._time + self._last) % 3
        self._last = np.array(action, np.int32)
        return self._timestep(reward)

    def close(self) -> None:
        pass


def vtrace(**changes: Any) -> Config:
    return tiny(checkpoint=CheckpointConfig(interval=10), log_every=5, **changes)


def r2d2(**changes: Any) -> Config:
    saving = ReplayCheckpointConfig(interval=10, save_replay=True)
    return tiny_r2d2(checkpoint=saving, log_every=5, **changes)


def train(config: Config, **changes: Any) -> sebulba.TrainResult:
    config = dataclasses.replace(config, **changes)
    return sebulba.train(config, make_env=Clockwork, topology=on(1), progress=False)


@pytest.mark.parametrize("lag", ["0", "1"])
@pytest.mark.parametrize(("make", "steps"), [(vtrace, 320), (r2d2, 960)])
def test_half_and_half_is_the_whole(make: Any, steps: int, lag: str, tmp_path: Path) -> None:
    config = make(policy_lag=lag)
    whole = train(config, total_steps=2 * steps)
    half = train(config, total_steps=steps, out=tmp_path / "run")
    resumed = train(config, total_steps=2 * steps, out=tmp_path / "run", resume=True)
    assert half.updates > 0 and whole.updates == resumed.updates > half.updates
    pairs = zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True)
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)
    # As many steps and updates, and the same losses, in each row of metrics.
    names = ("update", "steps", "loss", "gradient_norm", "episodes")
    rows = [tuple(row.get(name) for name in names) for row in half.metrics + resumed.metrics]
    assert rows == [tuple(row.get(name) for name in names) for row in whole.metrics]
