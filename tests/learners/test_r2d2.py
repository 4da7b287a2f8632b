"""R2D2: what is replayed is what was acted, and an update does what the paper says."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from r2d2_parts import (
    CONFIG,
    UNROLLS,
    B,
    fill,
    flat,
    global_batch,
    loss,
    make_learner,
    new_state,
    params,
    q_values,
    row_of,
    slow_errors,
    slow_priority,
    topology,
    trajectories,
)
from whole_runs import assert_same

from sebulba.devices.compiler import inspect
from sebulba.devices.topology import LEARNER_AXIS
from sebulba.learners import R2D2Learner, TrainState
from sebulba.learners.r2d2 import ReplayBatch


def test_a_replayed_sequence_has_the_actors_own_q_values() -> None:
    learner = make_learner()
    fill(learner)
    explored = 0
    starts = set()
    for _ in range(5):
        (sample,) = learner.replay.sample()
        got = np.asarray(q_values(params(), jax.device_get(sample.sequences)))
        for row, (index, age) in enumerate(zip(sample.indices, sample.ages, strict=True)):
            env = index % B
            span = trajectories()[age : age + 2]
            acted = np.concatenate([each.actor.extras[:, env] for each in span])
            np.testing.assert_allclose(got[row, :-1], acted, atol=1e-5)
            actions = np.asarray(sample.sequences.action[row])
            explored += int((actions != acted.argmax(axis=-1)).sum())
            starts.add(int(age))
    assert explored > 20 and starts == {0, 1, 2, 3}
    # Not all of it by the first step: sequences start in the middle of episodes.
    states = jax.tree.leaves(sample.sequences.initial_state)
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in states)


def priorities_in(learner: R2D2Learner, shard: int = 0) -> np.ndarray:
    powers = learner.replay._shards[shard].priorities.powers
    return np.where(powers > 0, powers, 0) ** (1 / CONFIG.replay.priority_exponent)


def test_priorities_at_collection() -> None:
    """Those of the actor's own Q values, which end with the unroll."""
    learner = make_learner()
    fill(learner)
    stored = priorities_in(learner).reshape(-1, B)
    for start in range(UNROLLS - 2):
        for env in range(B):
            errors: list[float | None] = []
            for each in trajectories()[start : start + 2]:
                q, action = each.actor.extras[:, env], each.actor.action[:-1, env]
                timestep = jax.tree.map(lambda leaf, env=env: leaf[:-1, env], each.timestep)
                errors += [*slow_errors(q, q, action, timestep), None]
            expected = slow_priority(errors[CONFIG.burn_in :])
            assert stored[start, env] == pytest.approx(expected, rel=1e-4), (start, env)


def update_once(learners: int, microbatches: int) -> tuple[R2D2Learner, list[dict[int, float]]]:
    """With priorities written back, and those of the slow loop for each shard."""
    learner = make_learner(learners, microbatches)
    fill(learner, learners)
    twin = make_learner(learners)
    fill(twin, learners)
    # What the first update draws: random numbers follow from the number of the sample.
    samples = twin.replay.sample()
    sequences = jax.tree.map(
        lambda *leaves: np.concatenate(leaves), *jax.device_get([s.sequences for s in samples])
    )
    q, q_target = (np.asarray(q_values(params(seed), sequences)) for seed in (1, 5))
    priorities = []
    for row in range(CONFIG.batch_size):
        errors = slow_errors(
            q[row, CONFIG.burn_in :],
            q_target[row, CONFIG.burn_in :],
            sequences.action[row, CONFIG.burn_in :],
            row_of(sequences.timestep, row, CONFIG.burn_in),
        )
        priorities.append(slow_priority(errors))
    expected = [
        dict(zip(sample.indices.tolist(), values, strict=True))
        for sample, values in zip(samples, np.split(np.array(priorities), learners), strict=True)
    ]
    learner.update(new_state(learners), progress=0.0)
    learner._write_back()
    return learner, expected


@pytest.mark.parametrize(
    ("learners", "microbatches"),
    [
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(4, 1, marks=pytest.mark.slow),
        (2, 2),
    ],
)
def test_priorities_after_an_update(learners: int, microbatches: int) -> None:
    learner, expected = update_once(learners, microbatches)
    for shard, values in enumerate(expected):
        stored = priorities_in(learner, shard)
        assert len(values) >= 2
        for index, value in values.items():
            assert stored[index] == pytest.approx(value, rel=1e-4)
    untouched = priorities_in(learner, 0)
    fresh = make_learner(learners)
    fill(fresh, learners)
    before = priorities_in(fresh, 0)
    others = np.setdiff1d(np.arange(len(before)), list(expected[0]))
    np.testing.assert_array_equal(untouched[others], before[others])


# The synchronized update


def placed_batch(learners: int) -> ReplayBatch:
    sharding = NamedSharding(topology(learners).mesh, PartitionSpec(LEARNER_AXIS))
    batch: ReplayBatch = jax.device_put(global_batch(), sharding)
    return batch


@functools.cache
def updated_on(learners: int, microbatches: int = 1) -> tuple[TrainState, Any, np.ndarray]:
    """State, logs and priorities after one update on the global batch."""
    learner = make_learner(learners, microbatches)
    state, batch = new_state(learners), (placed_batch(learners),)
    train, logs, of_microbatches = learner.synchronized(state.train, batch, state.target)
    per_device = [np.split(np.asarray(each), learners) for each in of_microbatches]
    priorities = np.concatenate([np.concatenate(each) for each in zip(*per_device, strict=True)])
    return train, jax.device_get(logs), priorities


@pytest.mark.parametrize(("learners", "microbatches"), [(4, 1), (2, 2)])
def test_any_number_of_learners_gives_the_same_update(learners: int, microbatches: int) -> None:
    (one, logs, priorities), start = updated_on(1), flat(params())
    got, got_logs, got_priorities = updated_on(learners, microbatches)
    step = flat(one.params) - start
    assert np.linalg.norm(step) > 1e-2
    # The difference of parameters has float32's rounding of the parameters themselves.
    error = np.linalg.norm(flat(got.params) - flat(one.params))
    assert error < 1e-5 * min(np.linalg.norm(start), 10 * np.linalg.norm(step))
    np.testing.assert_allclose(got_priorities, priorities, rtol=1e-5)
    assert {"loss", "q_mean", "td_error", "gradient_norm"} <= logs.keys() == got_logs.keys()
    for name, value in logs.items():
        assert got_logs[name] == pytest.approx(value, rel=1e-5), name


def test_the_loss_is_the_weighted_mean_of_the_squares() -> None:
    _, logs, _ = updated_on(1)
    batch, burn_in = global_batch(), CONFIG.burn_in
    q, q_target = (np.asarray(q_values(params(seed), batch.sequences)) for seed in (1, 5))
    squares = []
    for row in range(8):
        errors = slow_errors(
            q[row, burn_in:],
            q_target[row, burn_in:],
            batch.sequences.action[row, burn_in:],
            row_of(batch.sequences.timestep, row, burn_in),
        )
        squares.append([0.5 * (error or 0) ** 2 * batch.weights[row] for error in errors])
    assert logs["loss"] == pytest.approx(np.mean(squares), rel=1e-4)


def test_parameters_stay_bit_identical_on_every_learner_device() -> None:
    learner = make_learner(4)
    due = fill(learner, 4)
    state = new_state(4)
    for _ in range(due):
        state, _ = learner.update(state, progress=0.0)
    assert np.abs(flat(state.train.params) - flat(params())).max() > 1e-3
    for leaf in jax.tree.leaves(state):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 4 and len({copy.tobytes() for copy in copies}) == 1


def test_the_compiled_update_reduces_and_never_gathers() -> None:
    learner, state = make_learner(4), new_state(4)
    ((program, _),) = learner.synchronized.lower(state.train, (placed_batch(4),), state.target)
    assert set(inspect(program).collectives) == {"all-reduce"}


def test_weights_are_normalized_over_all_devices() -> None:
    learner = make_learner(4)
    fill(learner, 4)
    for number, shard in enumerate(learner.replay._shards):
        there = np.flatnonzero(shard.priorities.powers)
        shard.priorities.set(there, np.random.default_rng(number).gamma(1.0, size=len(there)))
    samples = learner.replay.sample()
    size = (UNROLLS - 2) * B / 4
    raw = np.concatenate([(size * sample.probabilities) ** -0.6 for sample in samples])
    weights = np.asarray(learner._batch(samples).weights)
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)
    assert sorted(part.max() == 1 for part in np.split(weights, 4)) == [False] * 3 + [True]


def test_burn_in_takes_no_gradient() -> None:
    batch = global_batch()
    observation = batch.sequences.timestep.observation["observation"]

    def loss_of(observation: Any, state: Any) -> jax.Array:
        timestep = batch.sequences.timestep
        timestep = timestep._replace(
            observation={**timestep.observation, "observation": observation}
        )
        sequences = batch.sequences._replace(timestep=timestep, initial_state=state)
        return loss(params(), params(seed=5), batch._replace(sequences=sequences))

    state = batch.sequences.initial_state
    value_and_grad = jax.jit(jax.value_and_grad(loss_of, (0, 1)))
    value, (gradient, of_state) = jax.device_get(value_and_grad(observation, state))
    assert not gradient[:, : CONFIG.burn_in].any()
    assert all(not leaf.any() for leaf in jax.tree.leaves(of_state))
    assert np.abs(gradient[:, CONFIG.burn_in]).max() > 0
    # And yet it warms the state up.
    other = jax.tree.map(lambda leaf: leaf + 1, state)
    assert value_and_grad(observation, other)[0] != value


def test_the_target_network_is_copied_every_so_many_updates() -> None:
    learner = make_learner(samples_per_insert=2.0)
    assert fill(learner) == 8
    state = new_state(target=1)
    assert_same(state.target, state.train.params)
    target = params()
    for k in range(1, 9):
        state, _ = learner.update(state, progress=0.0)
        now = jax.device_get(state.train.params)
        assert np.abs(flat(now) - flat(target)).max() > 0
        target = now if k % CONFIG.target_update_period == 0 else target
        assert_same(jax.device_get(state.target), target)
        assert int(state.updates) == k
        # Counted as it is done, although priorities come later.
        ratio = k * CONFIG.batch_size / (4 * B)
        assert learner.metrics()["samples_per_insert"] == pytest.approx(ratio)
