"""Which environments of EnvPool heed their seed, and that the others say so."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from env_battery import random_action

from sebulba import envs
from sebulba.types import DiscreteSpec

DEAF = [
    "myoHandReachRandom-v0",
    "MyoSuite/motorFingerPoseRandom-v0",
    "myoChallengeBaodingP1-v1",
    "Exit-v0",
    "intersection-v0",
    "lane-keeping-v0",
    "RacetrackOval-v0",
    "Roundabout-v0",
    "TwoWay-v0",
    "u-turn-v0",
    "Jumanji/CVRP-v1",
    "SearchAndRescue-v0",
    "Sokoban-v0",
]
HEARING = [
    "CartPole-v1",
    "Merge-v0",
    "TSP-v1",
    "HalfCheetah-v4",
    "Blackjack-v1",
    pytest.param("MyoHandMugRandom-v0", marks=pytest.mark.slow),
]
FIXED = [
    "CliffWalking-v1",
    "MiniGrid-Empty-5x5-v0",
    "motorFingerPoseFixed-v0",
    pytest.param("MyoHandMugFixed-v0", marks=pytest.mark.slow),
]
"""Deterministic by their rules, whatever their seed."""


def observed(env_id: str, seed: int) -> np.ndarray[Any, Any]:
    """What each of three environments observes when all of them do the same, ``[3, N]``."""
    env = envs.make(env_id, 3, seed=seed, num_threads=1)
    rng = np.random.default_rng(0)
    timesteps = [env.reset()]
    for _ in range(12):
        action = random_action(env.spec, rng)
        action[:] = action[0] if isinstance(env.spec.action, DiscreteSpec) else action[:1]
        timesteps.append(env.step(action))
    env.close()
    arrays = [array for t in timesteps for array in _arrays(t.observation)]
    return np.concatenate([array.reshape(3, -1) for array in arrays], axis=1)


def _arrays(observation: Any) -> list[Any]:
    return list(observation.values()) if isinstance(observation, dict) else [observation]


MENDED = tuple(map(int, version("envpool").split(".")[:3])) >= (1, 2, 7)


QUICK = ("intersection-v0", "Sokoban-v0")
SOME_SLOW = [
    pytest.param(env_id, marks=() if env_id in QUICK else pytest.mark.slow) for env_id in DEAF
]


@pytest.mark.skipif(MENDED, reason="this EnvPool heeds them")
@pytest.mark.parametrize("env_id", SOME_SLOW)
def test_an_environment_that_ignores_its_seed_says_so(env_id: str) -> None:
    with pytest.warns(UserWarning, match=rf"episodes of {env_id} are the same for every seed"):
        one, other = (observed(env_id, seed) for seed in (1, 2))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, one[[0, 0, 0]])


@pytest.mark.skipif(not MENDED, reason="this EnvPool ignores them")
@pytest.mark.parametrize("env_id", sorted(set(DEAF) - {"myoChallengeBaodingP1-v1"}))
def test_a_newer_envpool_heeds_them(env_id: str) -> None:
    one, other = (observed(env_id, seed) for seed in (1, 2))
    assert (one != other).any()


@pytest.mark.parametrize("env_id", HEARING)
def test_environments_that_heed_their_seed_say_nothing(env_id: str) -> None:
    one, other = (observed(env_id, seed) for seed in (1, 2))
    assert len(np.unique(np.concatenate([one, other]), axis=0)) == 6


@pytest.mark.parametrize("env_id", FIXED)
def test_environments_without_chance_say_nothing(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(observed(env_id, 1), observed(env_id, 2))
