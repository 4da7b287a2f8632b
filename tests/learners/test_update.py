"""One answer on any number of learner devices, and losses that mean what they say."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from unrolls import random_params, shards_of, unroll_of

from sebulba import (
    Behavior,
    ConfigError,
    NetworkConfig,
    OptimizerConfig,
    PolicyAgent,
    Topology,
    VTraceConfig,
)
from sebulba.agents import distributions, normalization
from sebulba.agents.networks import MOMENTS
from sebulba.devices.compiler import inspect
from sebulba.learners import (
    TRAJECTORY_AXES,
    TrainState,
    VTraceLearner,
    assemble,
    make_optimizer,
)
from sebulba.types import (
    ActorOutput,
    ArraySpec,
    DiscreteSpec,
    EnvSpec,
    Timestep,
    Trajectory,
)

T, B = 5, 8
SPEC = EnvSpec(ArraySpec((3,), np.dtype(np.float32)), DiscreteSpec(3), B)
CONFIG = VTraceConfig(
    envs_per_actor=B,
    batch_size=B,
    network=NetworkConfig(hidden_sizes=(16,), frame_stack=2),
    # Not Adam, which makes one size of gradients that differ by a factor.
    optimizer=OptimizerConfig(name="rmsprop", epsilon=1.0, learning_rate=0.1),
)
POLICY = distributions.make(SPEC.action)


@functools.cache
def topology(learners: int) -> Topology:
    """So many learner devices; one is shared with acting."""
    return Topology.split(1, jax.devices()[: learners + (learners > 1)])


def make_learner(learners: int = 1, **changes: Any) -> VTraceLearner:
    config = dataclasses.replace(CONFIG, **changes)
    agent = PolicyAgent(config.network, SPEC, POLICY)
    optimizer = make_optimizer(config.optimizer)
    return VTraceLearner(config, agent, SPEC, optimizer, topology(learners))


def random_trajectory(seed: int = 0, batch: int = B) -> Trajectory:
    """Off-policy, with several episodes in some columns and none ending in others."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    first = rng.random((T + 1, batch)) < np.linspace(0, 0.8, batch)
    discount = np.where(first, 1, rng.random((T + 1, batch)) < 0.8).astype(np.float32)
    timestep = Timestep(
        normal(T + 1, batch, 3), np.where(first, 0, 3 * normal(T + 1, batch)), discount, first
    )
    action = rng.integers(0, 3, (T, batch)).astype(np.int32)
    behavior = Behavior(-0.5 - rng.random((T, batch)).astype(np.float32), action)
    state = {"frames": normal(batch, 1, 3)}
    return Trajectory(timestep, ActorOutput(action, behavior), state)


@functools.cache
def params() -> Any:
    return random_params(PolicyAgent(CONFIG.network, SPEC, POLICY))


def new_state(learners: int = 1) -> TrainState:
    state: Any = TrainState(params(), make_optimizer(CONFIG.optimizer).init(params()))
    # Copies, since updates donate them.
    placed: TrainState = jax.device_put(
        jax.tree.map(np.array, state), topology(learners).replicated(), may_alias=False
    )
    return placed


def assembled(trajectory: Trajectory, learners: int) -> Trajectory:
    shards = unroll_of(trajectory, topology(learners)).shards
    whole: Trajectory = assemble(shards, TRAJECTORY_AXES, topology(learners))
    return whole


def update(learner: VTraceLearner, state: Any, learners: int, *trajectories: Trajectory) -> Any:
    unrolls = [unroll_of(trajectory, topology(learners)) for trajectory in trajectories]
    assert learner.add(unrolls) == 1
    return learner.update(state, progress=0.0)


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


@functools.cache
def updated() -> Any:
    """State and logs after the update of one learner on the whole batch."""
    return jax.device_get(update(make_learner(), new_state(), 1, random_trajectory()))


def on_host(tree: Any) -> np.ndarray[Any, Any]:
    """All numbers of a tree in one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


def relative(one: Any, other: Any) -> float:
    """The distance of two trees, relative to their size."""
    one, other = on_host(one), on_host(other)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@functools.cache
def whole_gradient() -> Any:
    """By jax.grad of the loss on the whole batch, with no device told apart."""
    value_and_grad = jax.jit(jax.value_and_grad(make_learner().loss, has_aux=True))
    (loss, logs), gradient = value_and_grad(params(), random_trajectory(), np.float32(0))
    return jax.device_get((gradient, {"loss": loss, **logs}))


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


@pytest.mark.parametrize("num_microbatches", [1, 2])
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


def sizes(config: OptimizerConfig, progress: Sequence[float]) -> list[float]:
    """Sizes of the updates of one parameter whose gradient stays 1."""
    optimizer = make_optimizer(config)
    params = {"w": jnp.ones(())}
    state = optimizer.init(params)
    step = jax.jit(optimizer.update)
    found = []
    for done in progress:
        updates, state = step({"w": jnp.ones(())}, state, params, progress=done)
        found.append(-float(updates["w"]))
    return found


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_the_learning_rate_falls_to_zero(name: str) -> None:
    config = OptimizerConfig(name=name, learning_rate=0.5, max_gradient_norm=10)
    progress = [0, 0.25, 0.5, 0.75, 1, 1]
    falling = np.array(sizes(config, progress))
    constant = np.array(sizes(dataclasses.replace(config, decay_to_zero=False), progress))
    np.testing.assert_allclose(falling / constant, [1, 0.75, 0.5, 0.25, 0, 0], atol=1e-6)
    assert (constant > 0).all()


def test_rmsprop_is_that_of_the_paper() -> None:
    """epsilon is inside the root, as in the optimizer that the paper used."""
    config = OptimizerConfig(
        learning_rate=0.5, epsilon=0.25, rms_decay=0.9, decay_to_zero=False, max_gradient_norm=10
    )
    mean_square, expected = 0.0, []
    for _ in range(4):
        mean_square = 0.9 * mean_square + 0.1
        expected.append(0.5 / (mean_square + 0.25) ** 0.5)
    np.testing.assert_allclose(sizes(config, [0] * 4), expected, rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm_and_logged_before() -> None:
    optimizer = make_optimizer(OptimizerConfig(max_gradient_norm=0.5))
    small, large = {"a": jnp.array([0.3, 0.4])}, {"a": jnp.array([30.0, 40.0])}
    state = optimizer.init(small)
    updates = [optimizer.update(gradient, state)[0]["a"] for gradient in (small, large)]
    np.testing.assert_allclose(*updates, rtol=1e-5)
    learner = make_learner(1, optimizer=OptimizerConfig(max_gradient_norm=1e-3))
    _, logs = update(learner, new_state(), 1, random_trajectory())
    expected = float(optax.tree.norm(whole_gradient()[0]))
    assert float(logs["gradient_norm"]) == pytest.approx(expected, rel=1e-5)
    assert expected > 1e-2
