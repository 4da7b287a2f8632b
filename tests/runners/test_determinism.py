"""With policy_lag "0" and "1" the result of a run depends on its seed, and not on timing."""

from __future__ import annotations

import random
import time
from typing import Any

import jax
import pytest
from whole_runs import HookedEnv, HookedEnvs, Pictures, assert_same, hooked_learner, on, tiny

import sebulba
from sebulba import NetworkConfig
from sebulba.learners import num_pieces

# (devices, inference devices, actors for each of these, unrolls in an update)
SHAPES = {
    "one actor": (1, 1, 1, 1),
    "several actors": (1, 1, 3, 1),
    "several lanes": (1, 1, 2, 2),
    "a lane twice in an update": (1, 1, 2, 3),
    "four devices": (4, 2, 2, 1),
    "four devices, several lanes": (4, 2, 1, 2),
}


def train(shape: str, lag: str, *, seed: int = 3, delays: int | None = None) -> Any:
    devices, inference, actors, lanes = SHAPES[shape]
    config = tiny(
        policy_lag=lag, seed=seed, actors_per_device=actors, batch_size=4 * lanes, log_every=1
    )
    wait = random.Random(delays)

    def delay(_: HookedEnv | int) -> None:
        if delays is not None:
            time.sleep(wait.choice((0.0, 0.0, 0.002, 0.01)))

    return sebulba.train(
        config,
        make_env=HookedEnvs(on_step=delay, on_reset=delay),
        make_learner=hooked_learner(config, delay),
        topology=on(devices, inference),
        progress=False,
    )


@pytest.mark.parametrize("lag", ["0", "1"])
@pytest.mark.parametrize("shape", SHAPES)
def test_runs_with_one_seed_are_bit_identical_whatever_the_timing(shape: str, lag: str) -> None:
    runs = [train(shape, lag), train(shape, lag, delays=1), train(shape, lag, delays=2)]
    for run in runs[1:]:
        assert_same(run.params, runs[0].params)
        assert run.updates == runs[0].updates
        assert [row["loss"] for row in run.metrics] == [row["loss"] for row in runs[0].metrics]
        returns = [[row["episode_return_mean"] for row in r.metrics] for r in (run, runs[0])]
        assert returns[0] == returns[1]


def test_images_in_pieces_are_too() -> None:
    config = tiny(
        policy_lag="1",
        envs_per_actor=32,
        batch_size=32,
        total_steps=1600,
        network=NetworkConfig(torso="small", hidden_sizes=(32,)),
    )
    assert num_pieces(config, on(1)) == 2
    runs = [
        sebulba.train(config, make_env=Pictures, topology=on(1), progress=False) for _ in range(3)
    ]
    for run in runs[1:]:
        assert_same(run.params, runs[0].params)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_lag_is_exactly_what_was_asked_for(shape: str) -> None:
    for row in train(shape, "0").metrics:
        assert row["policy_lag_mean"] == row["policy_lag_max"] == 0
    first, *others = train(shape, "1").metrics
    assert first["policy_lag_max"] == 0
    assert len(others) > 2
    for row in others:
        assert row["policy_lag_mean"] == row["policy_lag_max"] == 1


@pytest.mark.parametrize("lag", ["0", "1"])
def test_another_seed_gives_another_result(lag: str) -> None:
    one, other = (train("several actors", lag, seed=seed).params for seed in (3, 4))
    assert any(
        (a != b).any() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_another_seed_gives_other_episodes_to_every_actor() -> None:
    seeds = []
    for seed in (3, 4):
        made = HookedEnvs()
        config = tiny(seed=seed, actors_per_device=4, policy_lag="0")
        sebulba.train(config, make_env=made, topology=on(1), progress=False)
        seeds += [env.seed for env in made.made]
    assert len(set(seeds)) == len(seeds) == 8
