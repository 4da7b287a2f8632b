"""What the records of the algorithms say of sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from sebulba import NetworkConfig, PPOConfig, PQNConfig, algorithms, presets
from sebulba.learners.r2d2 import R2D2Config

LSTM = NetworkConfig(core="lstm")


def test_sizes_are_rounded_up_to_what_the_learners_divide() -> None:
    vtrace = dataclasses.replace(presets.get("vtrace-atari"), batch_size=64)
    fitted = algorithms.VTRACE.fit(vtrace, 3)
    assert (fitted.envs_per_actor, fitted.batch_size) == (33, 66)
    assert algorithms.VTRACE.fit(vtrace, 2) == vtrace
    in_microbatches = dataclasses.replace(vtrace, envs_per_actor=16, num_microbatches=16)
    fitted = algorithms.VTRACE.fit(in_microbatches, 2)
    assert (fitted.envs_per_actor, fitted.batch_size) == (32, 128)


def test_r2d2_divides_environments_and_sequences() -> None:
    r2d2 = presets.get("r2d2-atari")
    fitted = algorithms.R2D2.fit(r2d2, 3)
    assert (fitted.envs_per_actor, fitted.batch_size) == (66, 66)
    assert algorithms.R2D2.fit(r2d2, 2) == r2d2
    in_microbatches = dataclasses.replace(r2d2, batch_size=72, num_microbatches=5)
    fitted = algorithms.R2D2.fit(in_microbatches, 4)
    assert (fitted.envs_per_actor, fitted.batch_size) == (64, 80)


@pytest.mark.parametrize(
    ("changes", "learners", "fitted"),
    [
        ({}, 2, (8, 8)),
        ({}, 3, (9, 9)),
        ({"unroll_length": 5}, 1, (8, 8)),  # 40 steps in 4 minibatches.
        ({"unroll_length": 5}, 4, (16, 16)),  # 20 steps on each device, and not 10.
        ({"unroll_length": 5, "num_microbatches": 3}, 1, (12, 12)),
        ({"batch_size": 24, "unroll_length": 5}, 2, (8, 24)),  # 60 steps, of three unrolls.
        ({"network": LSTM}, 2, (8, 8)),
        ({"network": LSTM}, 4, (16, 16)),  # Four trajectories on each device.
        ({"network": LSTM, "num_minibatches": 3, "batch_size": 24}, 1, (8, 24)),
    ],
)
def test_a_learners_share_divides_into_minibatches(
    changes: dict[str, Any], learners: int, fitted: tuple[int, int]
) -> None:
    config = PPOConfig(**{"envs_per_actor": 8, "batch_size": 8, **changes})
    found = algorithms.PPO.fit(config, learners)
    assert (found.envs_per_actor, found.batch_size) == fitted
    assert algorithms.PPO.fits(found, learners)
    assert algorithms.PPO.fits(config, learners) == (found == config)


def test_pqn_explores_less_as_training_goes_on() -> None:
    config = PQNConfig(epsilon_start=0.9, epsilon_end=0.1, exploration_fraction=0.5)
    exploration = algorithms.PQN.make_exploration(config, 6)
    assert exploration is not None
    assert exploration.epsilons(0.25).dtype == np.float32
    for progress, epsilon in ((0.0, 0.9), (0.25, 0.5), (0.5, 0.1), (1.0, 0.1)):
        np.testing.assert_allclose(exploration.epsilons(progress), [epsilon] * 6, rtol=1e-6)
    at_once = dataclasses.replace(config, exploration_fraction=0.0)
    exploration = algorithms.PQN.make_exploration(at_once, 1)
    assert exploration is not None and exploration.epsilons(0.0)[0] == np.float32(0.1)


def test_r2d2_updates_as_often_as_the_samples_per_insert_says() -> None:
    config = presets.get("r2d2-atari")
    assert isinstance(config, R2D2Config)
    # 64 sequences for each 80 inserted, each of which took 40 steps.
    assert algorithms.R2D2.steps_per_update(config) == 80 * 40
