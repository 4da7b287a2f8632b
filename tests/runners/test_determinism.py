"""With policy_lag "0" and "1" the result of a run depends on its seed, and not on timing."""

from __future__ import annotations

import random
import time
from typing import Any

import jax
import pytest
from whole_runs import (
    HookedEnv,
    HookedEnvs,
    Pictures,
    assert_same,
    hooked_learner,
    on,
    tiny,
    tiny_ppo,
    tiny_pqn,
)

import sebulba
from sebulba import NetworkConfig
from sebulba.learners.microbatches import fitting_the_cache

# (devices, inference devices, actors for each of these, unrolls in an update)
SHAPES = {
    "one actor": (1, 1, 1, 1),
    "several actors": (1, 1, 3, 1),
    "several lanes": (1, 1, 2, 2),
    "a lane twice in an update": (1, 1, 2, 3),
    "four devices": (4, 2, 2, 1),
    "four devices, several lanes": (4, 2, 1, 2),
}

# The others are these with less of something.
MOST = {"one actor", "a lane twice in an update", "four devices, several lanes"}
SHAPES_IN_TESTS = [
    pytest.param(shape, marks=[] if shape in MOST else pytest.mark.slow) for shape in SHAPES
]


def train(shape: str, lag: str, *, seed: int = 3, delays: int | None = None) -> Any:
    """The result of a run, and the environments that it made."""
    devices, inference, actors, lanes = SHAPES[shape]
    config = tiny(
        policy_lag=lag, seed=seed, actors_per_device=actors, batch_size=4 * lanes, log_every=1
    )
    wait = random.Random(delays)

    def delay(_: HookedEnv | int) -> None:
        if delays is not None:
            time.sleep(wait.choice((0.0, 0.0, 0.002, 0.01)))

    made = HookedEnvs(on_step=delay, on_reset=delay)
    result = sebulba.train(
        config,
        make_env=made,
        algorithm=hooked_learner(delay),
        topology=on(devices, inference),
        progress=False,
    )
    return result, made.made


def lags(result: sebulba.TrainResult, which: str) -> list[Any]:
    return [row[f"policy_lag_{which}"] for row in result.metrics]


@pytest.mark.parametrize("lag", ["1", pytest.param("0", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES_IN_TESTS)
def test_runs_with_one_seed_are_bit_identical_whatever_the_timing(shape: str, lag: str) -> None:
    (one, _), (other, _) = train(shape, lag), train(shape, lag, delays=1)
    assert_same(one.params, other.params)
    assert one.updates == other.updates
    for name in ("loss", "episode_return_mean"):
        assert [row[name] for row in one.metrics] == [row[name] for row in other.metrics]
    # The lag is exactly what was asked for, but for the first turn, which has no older parameters.
    for run in (one, other):
        asked = [0, *[int(lag)] * (len(run.metrics) - 1)]
        assert len(asked) > 3
        assert lags(run, "mean") == lags(run, "max") == asked


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_ppo, tiny_pqn])
def test_epochs_of_minibatches_are_too(make: Any) -> None:
    config = make(policy_lag="1", log_every=1)
    one, other = (sebulba.train(config, topology=on(4, 2), progress=False) for _ in range(2))
    assert one.updates > 3
    assert_same(one.params, other.params)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny, tiny_ppo])
def test_images_in_microbatches_are_too(make: Any) -> None:
    config = make(
        policy_lag="1",
        envs_per_actor=18,
        batch_size=18,
        total_steps=400,
        network=NetworkConfig(torso="small", hidden_sizes=(8,)),
    )
    if make is tiny:
        assert fitting_the_cache(config, on(1)) == 2
    one, other = (
        sebulba.train(config, make_env=Pictures, topology=on(1), progress=False) for _ in range(2)
    )
    assert one.updates > 3
    assert_same(one.params, other.params)


def test_another_seed_gives_another_result_and_other_episodes_to_every_actor() -> None:
    (one, its_envs), (other, the_others) = (train("several actors", "1", seed=n) for n in (3, 4))
    leaves = zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True)
    assert any((a != b).any() for a, b in leaves)
    seeds = [env.seed for env in (*its_envs, *the_others)]
    assert len(set(seeds)) == len(seeds) == 6
