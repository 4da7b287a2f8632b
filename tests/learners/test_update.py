"""One answer on any number of learner devices, in microbatches, and from several lanes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unrolls import shards_of, unroll_of
from vtrace_parts import (
    CONFIG,
    POLICY,
    SPEC,
    B,
    make_learner,
    new_state,
    on_host,
    params,
    random_trajectory,
    topology,
    update,
    updated,
    whole_gradient,
)

from sebulba import ConfigError, NetworkConfig, PolicyAgent
from sebulba.agents import normalization
from sebulba.agents.networks import MOMENTS
from sebulba.devices.compiler import inspect
from sebulba.learners import TRAJECTORY_AXES, VTraceLearner, assemble, make_optimizer
from sebulba.types import Trajectory


def assembled(trajectory: Trajectory, learners: int) -> Trajectory:
    shards = unroll_of(trajectory, topology(learners)).shards
    whole: Trajectory = assemble(shards, TRAJECTORY_AXES, topology(learners))
    return whole


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        (lambda loss, logs: loss, r"Own\.loss returns float32\[\]: .* return the loss and a dict"),
        (lambda loss, logs: None, r"Own\.loss returns None.* Return \(loss, \{\}\) to log nothing"),
        (lambda loss, logs: (loss, loss), r"returns \(float32\[\], float32\[\]\)"),
        (
            lambda loss, logs: (jnp.stack([loss, loss]), logs),
            r"the loss is float32\[2\]; .* one num",
        ),
        (lambda loss, logs: (None, logs), "the loss is None; it must be one number"),
        (lambda loss, logs: (loss, {"a": jnp.zeros(3)}), r"'a' in the logs is float32\[3\].*mean"),
        (lambda loss, logs: (jnp.int32(1), logs), r"the loss is int32\[\]; .* floating-point"),
        (lambda loss, logs: (loss, {"loss": loss}), "a log 'loss', which .* Rename it"),
        (lambda loss, logs: (loss, {"gradient_norm": loss}), "a log 'gradient_norm', which"),
    ],
)
def test_a_loss_that_is_no_pair_of_a_scalar_and_logs_is_refused(changed: Any, rule: str) -> None:
    class Own(VTraceLearner):
        def loss(self, params: Any, trajectory: Trajectory, progress: Any) -> Any:
            return changed(*super().loss(params, trajectory, progress))

    parts = PolicyAgent(CONFIG.network, SPEC, POLICY), SPEC, make_optimizer(CONFIG.optimizer)
    with pytest.raises(ConfigError, match=rule):
        update(Own(CONFIG, *parts, topology(1)), new_state(), 1, random_trajectory())


def relative(one: Any, other: Any) -> float:
    """The distance of two trees, relative to their size."""
    one, other = on_host(one), on_host(other)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def check_logs(logs: Any, expected: Any) -> None:
    assert logs.keys() == expected.keys()
    for name, value in expected.items():
        assert float(logs[name]) == pytest.approx(float(value), rel=1e-5), name


@pytest.mark.parametrize("learners", [1, 4])
def test_the_gradient_is_that_of_the_whole_batch(learners: int) -> None:
    learner, batch = make_learner(learners), (assembled(random_trajectory(), learners),)
    (gradient, logs, _), _ = jax.jit(learner.synchronized.gradient)(
        params(), batch, (), np.float32(0)
    )
    expected, expected_logs = whole_gradient()
    assert relative(gradient, expected) < 1e-5
    check_logs(logs, expected_logs)


@pytest.mark.parametrize(("learners", "microbatches"), [(1, 4), (2, 4)])
def test_the_gradient_in_microbatches_is_the_whole(learners: int, microbatches: int) -> None:
    learner = make_learner(learners, num_microbatches=microbatches)
    batch = (assembled(random_trajectory(), learners),)
    gradient = jax.jit(learner.synchronized.gradient)
    each = [gradient(params(), batch, (), np.float32(0), np.int32(i)) for i in range(microbatches)]
    found = [mean[0] for mean, _ in each]
    expected, _ = whole_gradient()
    assert relative(found[0], expected) > 0.1
    mean = jax.tree.map(lambda *leaves: sum(leaves) / microbatches, *jax.device_get(found))
    assert relative(mean, expected) < 1e-5


def moments(learners: int, microbatches: int = 1) -> normalization.Moments:
    """By which observations are normalized after three updates."""
    network = NetworkConfig(hidden_sizes=(16,), normalize_observations=True)
    learner = make_learner(learners, network=network, num_microbatches=microbatches)
    state = learner.init(jax.random.key(0))
    for k in range(3):
        state, _ = update(learner, state, learners, random_trajectory(k)._replace(initial_state={}))
    found: normalization.Moments = state.params[MOMENTS]
    return found


@pytest.mark.parametrize(
    ("learners", "microbatches"),
    [
        (1, 1),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(4, 1, marks=pytest.mark.slow),
        (2, 4),
    ],
)
def test_observations_are_normalized_by_those_of_all_devices(
    learners: int, microbatches: int
) -> None:
    found = moments(learners, microbatches)
    seen = np.stack([random_trajectory(k).timestep.observation for k in range(3)])
    np.testing.assert_allclose(found.mean[0], seen.mean((0, 1, 2)), atol=1e-5)
    # That between the microbatches of the first batch is left out.
    tolerance = 1e-5 if microbatches == 1 else 0.05
    np.testing.assert_allclose(found.variance[0], seen.var((0, 1, 2)), rtol=tolerance)


def test_parameters_stay_bit_identical_on_every_learner_device() -> None:
    learner = make_learner(4)
    state = learner.init(jax.random.key(1))
    before = on_host(state.params)
    for k in range(3):
        state, _ = update(learner, state, 4, random_trajectory(k))
    assert np.abs(on_host(state.params) - before).max() > 1e-3
    for leaf in jax.tree.leaves(state):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 4
        assert len({copy.tobytes() for copy in copies}) == 1
        assert copies[0].shape == leaf.shape


@pytest.mark.parametrize(
    ("microbatches", "expected"), [(1, [(1, True)]), (2, [(2, True), (1, False)])]
)
def test_the_compiled_update_reduces_and_never_gathers(
    microbatches: int, expected: list[tuple[int, bool]]
) -> None:
    learner = make_learner(4, num_microbatches=microbatches)
    batch = (assembled(random_trajectory(), 4),)
    found = []
    for program, times in learner.synchronized.lower(new_state(4), batch):
        collectives = set(inspect(program).collectives)
        assert collectives <= {"all-reduce"}
        found.append((times, bool(collectives)))
    assert found == expected


def test_on_a_single_learner_device_nothing_is_reduced() -> None:
    """XLA would copy the gradient for it."""
    learner = make_learner(1, num_microbatches=2)
    programs = learner.synchronized.lower(new_state(1), (assembled(random_trajectory(), 1),))
    assert [set(inspect(program).collectives) for program, _ in programs] == [set(), set()]


def test_an_update_in_microbatches_is_that_of_the_whole_batch() -> None:
    learner = make_learner(2, num_microbatches=4)
    state, logs = update(learner, new_state(2), 2, random_trajectory())
    expected, expected_logs = updated()
    before = on_host(params())
    assert np.linalg.norm(on_host(expected.params) - before) > 1e-2
    # The difference of parameters has float32's rounding of the parameters themselves.
    difference = on_host(state.params) - on_host(expected.params)
    assert np.linalg.norm(difference) < 1e-5 * np.linalg.norm(before)
    check_logs(logs, expected_logs)


def test_microbatches_are_computed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an actor's step waits for one at most, and memory is that of one."""
    learner = make_learner(2, num_microbatches=4)
    gradient, computed, ready = learner.synchronized._gradient, [], []

    def spied(*args: Any) -> Any:
        ready.append(all(leaf.is_ready() for leaf in jax.tree.leaves(computed)))
        # What takes a while, so that it is not ready by chance.
        busy = jnp.zeros(()) + jnp.linalg.matrix_power(jnp.eye(600), 50)[0, 0]
        mean, per_sequence = gradient(*args)
        computed.append((mean, (per_sequence, busy)))
        return computed[-1]

    monkeypatch.setattr(learner.synchronized, "_gradient", spied)
    update(learner, new_state(2), 2, random_trajectory())
    assert ready == [True] * 4


def test_several_lanes_are_one_batch() -> None:
    halves = shards_of(random_trajectory(), 2)
    learner = make_learner(2, envs_per_actor=B // 2)
    state, logs = update(learner, new_state(2), 2, *halves)
    expected, expected_logs = updated()
    assert relative(state.params, expected.params) < 1e-5
    assert float(logs["loss"]) == pytest.approx(float(expected_logs["loss"]), rel=1e-5)
