"""R2D2: what is replayed is what was acted, and an update does what the paper says."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from r2d2_parts import (
    CONFIG,
    UNROLLS,
    B,
    fill,
    flat,
    global_batch,
    make_learner,
    new_state,
    params,
    q_values,
    row_of,
    slow_errors,
    slow_priority,
    topology,
    unrolls,
)
from whole_runs import assert_same

from sebulba.learners import R2D2Learner
from sebulba.learners.base import TrainState, assemble
from sebulba.learners.r2d2 import _BATCH_AXES, ReplayBatch


def test_a_replayed_sequence_has_the_actors_own_q_values() -> None:
    learner = make_learner()
    fill(learner)
    explored = 0
    starts = set()
    for _ in range(5):
        (sample,) = learner.replay.sample()
        got = np.asarray(q_values(params(), sample.sequences))
        for row, (index, age) in enumerate(zip(sample.indices, sample.ages, strict=True)):
            env = index % B
            span = unrolls()[age : age + 2]
            acted = np.concatenate([unroll.actor.extras[:, env] for unroll in span])
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
            for unroll in unrolls()[start : start + 2]:
                q, action = unroll.actor.extras[:, env], unroll.actor.action[:-1, env]
                timestep = jax.tree.map(lambda leaf, env=env: leaf[:-1, env], unroll.timestep)
                errors += [*slow_errors(q, q, action, timestep), None]
            expected = slow_priority(errors[CONFIG.burn_in :])
            assert stored[start, env] == pytest.approx(expected, rel=1e-4), (start, env)


def update_once(learners: int, pieces: int) -> tuple[R2D2Learner, list[dict[int, float]]]:
    """With priorities written back, and those of the slow loop for each shard."""
    learner = make_learner(learners, pieces)
    fill(learner, learners)
    state = new_state(learners)
    samples = learner.replay.sample()
    learner._prefetched = samples
    online, target = params(), params(seed=5)
    expected = []
    for sample in samples:
        sequences = jax.device_get(sample.sequences)
        q, q_target = (np.asarray(q_values(p, sequences)) for p in (online, target))
        burn_in, values = CONFIG.burn_in, {}
        for row, index in enumerate(sample.indices.tolist()):
            errors = slow_errors(
                q[row, burn_in:],
                q_target[row, burn_in:],
                sequences.action[row, burn_in:],
                row_of(sequences.timestep, row, burn_in),
            )
            values[index] = slow_priority(errors)
        expected.append(values)
    learner.update(state)
    learner._write_back()
    return learner, expected


@pytest.mark.parametrize(("learners", "pieces"), [(1, 1), (4, 1), (2, 2)])
def test_priorities_after_an_update(learners: int, pieces: int) -> None:
    learner, expected = update_once(learners, pieces)
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
    size = 8 // learners
    parts = [
        jax.device_put(
            jax.tree.map(lambda leaf, i=i: leaf[i * size : (i + 1) * size], global_batch()), device
        )
        for i, device in enumerate(topology(learners).learners)
    ]
    batch: ReplayBatch = assemble(parts, _BATCH_AXES, topology(learners))
    return batch


@functools.cache
def updated_on(learners: int, pieces: int = 1) -> tuple[TrainState, Any, np.ndarray]:
    """State, logs and priorities after one update on the global batch."""
    learner = make_learner(learners, pieces)
    state = new_state(learners)
    train, logs, parts = learner.synchronized(state.train, placed_batch(learners), state.target)
    per_device = [np.split(np.asarray(part), learners) for part in parts]
    priorities = np.concatenate(
        [np.concatenate(pieces) for pieces in zip(*per_device, strict=True)]
    )
    return train, jax.device_get(logs), priorities


@pytest.mark.parametrize(("learners", "pieces"), [(4, 1), (2, 2)])
def test_any_number_of_learners_gives_the_same_update(learners: int, pieces: int) -> None:
    (one, logs, priorities), start = updated_on(1), flat(params())
    got, got_logs, got_priorities = updated_on(learners, pieces)
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
        state, _ = learner.update(state)
    assert np.abs(flat(state.train.params) - flat(params())).max() > 1e-3
    for leaf in jax.tree.leaves(state):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 4 and len({copy.tobytes() for copy in copies}) == 1


def test_the_compiled_update_reduces_and_never_gathers() -> None:
    learner, state = make_learner(4), new_state(4)
    ((program, _),) = learner.synchronized.lower(state.train, placed_batch(4), state.target)
    text = program.compile().as_text()
    assert text is not None and "all-reduce" in text
    for other in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert other not in text, other


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
    learner, batch = make_learner(), global_batch()
    observation = batch.sequences.timestep.observation["observation"]

    def loss(observation: Any, state: Any) -> jax.Array:
        timestep = batch.sequences.timestep
        timestep = timestep._replace(
            observation={**timestep.observation, "observation": observation}
        )
        sequences = batch.sequences._replace(timestep=timestep, initial_state=state)
        return learner.loss(params(), params(seed=5), batch._replace(sequences=sequences))[0]

    state = batch.sequences.initial_state
    value_and_grad = jax.jit(jax.value_and_grad(loss, (0, 1)))
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
        state, _ = learner.update(state)
        now = jax.device_get(state.train.params)
        assert np.abs(flat(now) - flat(target)).max() > 0
        target = now if k % CONFIG.target_update == 0 else target
        assert_same(jax.device_get(state.target), target)
        assert int(state.updates) == k
        # Counted as it is done, although priorities come later.
        ratio = k * CONFIG.batch_size / (4 * B)
        assert learner.metrics()["replay_ratio"] == pytest.approx(ratio)
