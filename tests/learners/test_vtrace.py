"""V-trace's loss: what it is a mean of, what it leaves out, and what its options weigh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from unrolls import shards_of, unroll_of
from vtrace_parts import B, make_learner, new_state, on_host, params, random_trajectory, topology

from sebulba import Behavior
from sebulba.types import ActorOutput, Trajectory


@functools.cache
def compiled_loss(**changes: Any) -> Any:
    return jax.jit(make_learner(1, **changes).loss)


def loss(trajectory: Trajectory, progress: float = 0.0, **changes: Any) -> dict[str, float]:
    total, logs = compiled_loss(**changes)(params(), trajectory, np.float32(progress))
    return {"loss": float(total), **{name: float(value) for name, value in logs.items()}}


def test_losses_are_means_over_all_elements() -> None:
    """So the mean over single columns is the whole, however many steps of each are masked."""
    trajectory = random_trajectory()
    masked = trajectory.timestep.first[1:].sum(axis=0)
    assert masked.min() == 0 and masked.max() > 2
    columns = [loss(column) for column in shards_of(trajectory, B)]
    for name, value in loss(trajectory).items():
        assert value == pytest.approx(np.mean([column[name] for column in columns]), rel=1e-4), name


def test_nothing_of_a_masked_step_is_learned() -> None:
    trajectory = random_trajectory()
    timestep, actor = trajectory.timestep, trajectory.actor
    over = timestep.first[1:]
    assert over.any()
    action = np.where(over, (actor.action + 1) % 3, actor.action)
    behavior = Behavior(np.where(over, -3, actor.extras.log_prob).astype(np.float32), action)
    changed = trajectory._replace(actor=ActorOutput(action, behavior))
    assert loss(changed) == loss(trajectory)


def test_rewards_are_scaled_then_clipped_for_learning_only() -> None:
    trajectory = random_trajectory()
    rewards = trajectory.timestep.reward
    assert np.abs(rewards).max() > 4
    changed = np.clip(rewards * np.float32(0.5), -1, 1).astype(np.float32)
    by_hand = trajectory._replace(timestep=trajectory.timestep._replace(reward=changed))
    assert loss(trajectory, reward_scale=0.5, reward_clip=1.0) == pytest.approx(
        loss(by_hand), rel=1e-6
    )
    assert loss(trajectory, reward_scale=0.5)["loss"] != loss(trajectory)["loss"]

    learner = make_learner(1, reward_clip=1.0)
    unroll = unroll_of(trajectory, topology(1))
    learner.add([unroll])
    learner.update(new_state(), progress=0.0)
    np.testing.assert_array_equal(unroll.shards[0].timestep.reward, rewards)


def test_costs_weigh_the_terms() -> None:
    logs = loss(random_trajectory(), baseline_cost=0.25, entropy_cost=0.125)
    total = logs["policy_loss"] + 0.25 * logs["baseline_loss"] - 0.125 * logs["entropy"]
    assert logs["loss"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("num_microbatches", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_weight_of_the_entropy_falls_to_zero(num_microbatches: int) -> None:
    trajectory = random_trajectory()

    def params(**changes: Any) -> Any:
        learner = make_learner(1, num_microbatches=num_microbatches, **changes)
        learner.add([unroll_of(trajectory, topology(1))])
        state, _ = learner.update(new_state(), progress=0.25)
        return on_host(state.params)

    falling = params(entropy_cost=0.4, entropy_decay_to_zero=True)
    np.testing.assert_allclose(falling, params(entropy_cost=0.3), atol=1e-6)
    assert np.abs(falling - params(entropy_cost=0.4)).max() > 1e-5
