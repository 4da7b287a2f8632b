"""PPO and PQN: minibatches, what they learn from, and one answer on any number of devices."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unrolls import random_params, shards_of, unroll_of

from sebulba import (
    Behavior,
    ConfigError,
    NetworkConfig,
    OptimizerConfig,
    PPOConfig,
    PQNConfig,
    Topology,
    algorithms,
)
from sebulba.agents.networks import MOMENTS
from sebulba.devices.compiler import inspect
from sebulba.learners import EpochLearner, make_optimizer
from sebulba.learners.epochs import EpochConfig, EpochState, Samples
from sebulba.learners.update import TrainState
from sebulba.types import (
    ActorOutput,
    ArraySpec,
    BoxSpec,
    DiscreteSpec,
    EnvSpec,
    MultiDiscreteSpec,
    Timestep,
    Trajectory,
)

T, B = 6, 8
FLOAT = np.dtype(np.float32)
SPEC = EnvSpec(ArraySpec((3,), FLOAT), DiscreteSpec(3), B)
PLAIN = NetworkConfig(hidden_sizes=(16,))
STACKED = NetworkConfig(hidden_sizes=(16,), frame_stack=3)
LSTM = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8)
# Not Adam, which makes one size of gradients that differ by a factor.
OPTIMIZER = OptimizerConfig(name="rmsprop", epsilon=1.0, learning_rate=0.1, max_gradient_norm=100)


def ppo(**changes: Any) -> PPOConfig:
    config = PPOConfig(
        envs_per_actor=B,
        batch_size=B,
        unroll_length=T,
        num_epochs=2,
        num_minibatches=2,
        network=PLAIN,
        optimizer=OPTIMIZER,
    )
    return dataclasses.replace(config, **changes)


def pqn(**changes: Any) -> PQNConfig:
    config = PQNConfig(
        envs_per_actor=B,
        batch_size=B,
        unroll_length=T,
        num_minibatches=2,
        network=PLAIN,
        optimizer=OPTIMIZER,
    )
    return dataclasses.replace(config, **changes)


BOTH = pytest.mark.parametrize("make", [ppo, pqn])


@functools.cache
def topology(learners: int) -> Topology:
    """So many learner devices; one is shared with acting."""
    return Topology.split(1, jax.devices()[: learners + (learners > 1)])


def agent_of(config: EpochConfig, spec: EnvSpec = SPEC) -> Any:
    return algorithms.of(config).make_agent(config, spec, "training")


def make_learner(config: EpochConfig, learners: int = 1, spec: EnvSpec = SPEC) -> Any:
    optimizer = make_optimizer(config.optimizer)
    make = algorithms.of(config).make_learner
    return make(config, agent_of(config, spec), spec, optimizer, topology(learners))


def new_state(config: EpochConfig, learners: int = 1, spec: EnvSpec = SPEC) -> EpochState:
    params = random_params(agent_of(config, spec))
    if MOMENTS in params:
        params[MOMENTS] = agent_of(config, spec).init(jax.random.key(0))[MOMENTS]
    train = TrainState(params, make_optimizer(config.optimizer).init(params))
    state: Any = jax.tree.map(np.array, EpochState(train, np.int32(3)))  # type: ignore[arg-type]
    # Copies, since updates donate them.
    placed: EpochState = jax.device_put(state, topology(learners).replicated(), may_alias=False)
    return placed


def trajectory_of(config: EpochConfig, seed: int = 0, spec: EnvSpec = SPEC) -> Trajectory:
    """Several episodes in some columns, none ending in others, and actions that were likely."""
    rng = np.random.default_rng(seed)
    first = rng.random((T + 1, B)) < np.linspace(0, 0.7, B)
    discount = np.where(first, 1, rng.random((T + 1, B)) < 0.8).astype(np.float32)
    observation = rng.normal(size=(T + 1, B, 3)).astype(np.float32)
    reward = np.where(first, 0, rng.normal(size=(T + 1, B))).astype(np.float32)
    timestep = Timestep(observation, reward, discount, first)
    agent = agent_of(config, spec)
    state = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), agent.initial_state(B)
    )
    params, act = random_params(agent, seed=5), jax.jit(agent.act)
    now, outputs = state, []
    for t in range(T):
        at = jax.tree.map(lambda leaf, t=t: leaf[t], timestep)
        output, now = act(params, jax.random.key(t), at, now)
        outputs.append(jax.device_get(output))
    return Trajectory(timestep, jax.tree.map(lambda *leaves: np.stack(leaves), *outputs), state)


@functools.cache
def trajectory(kind: str, network: NetworkConfig = PLAIN) -> Trajectory:
    """One for all tests of an algorithm and a network, in NumPy."""
    return trajectory_of((ppo if kind == "ppo" else pqn)(network=network))


def add(learner: EpochLearner, *trajectories: Trajectory, learners: int = 1) -> None:
    unrolls = [unroll_of(each, topology(learners)) for each in trajectories]
    assert learner.add(unrolls) == 1


def prepared(config: EpochConfig, batch: Trajectory, learners: int = 1) -> Any:
    learner = make_learner(config, learners)
    add(learner, batch, learners=learners)
    return learner.prepare_turn(new_state(config, learners).train.params, learner._turn)


def updated(config: EpochConfig, batch: Trajectory, learners: int = 1) -> tuple[Any, Any]:
    """State and logs after one turn."""
    learner = make_learner(config, learners)
    add(learner, batch, learners=learners)
    state, logs = learner.update(new_state(config, learners), 0.0)
    return jax.device_get(state), {name: float(value) for name, value in logs.items()}


@pytest.mark.parametrize("method", ["targets", "loss"])
def test_targets_and_loss_without_logs_are_refused(method: str) -> None:
    learner = make_learner(ppo())
    setattr(learner, method, lambda *_: jnp.float32(0))
    add(learner, trajectory("ppo"))
    with pytest.raises(ConfigError, match=rf"PPOLearner\.{method} returns float32\[\]: .*{method}"):
        learner.update(new_state(ppo()), 0.0)


def on_host(tree: Any) -> np.ndarray[Any, Any]:
    """All numbers of a tree in one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


def name_of(make: Any) -> str:
    return "ppo" if make is ppo else "pqn"


# Minibatches


@pytest.mark.parametrize(("network", "learners"), [(PLAIN, 1), (STACKED, 4), (LSTM, 2)])
def test_every_step_is_in_one_minibatch_of_each_epoch(
    network: NetworkConfig, learners: int
) -> None:
    config = ppo(network=network)
    learner = make_learner(config, learners)
    batch = trajectory("ppo", network)
    add(learner, batch, learners=learners)
    samples = learner.prepare_turn(new_state(config, learners).train.params, learner._turn).samples
    orders = []
    for turn, epoch in ((0, 0), (0, 1), (1, 0)):
        minibatches = learner.shuffle(samples, jnp.int32(turn), np.int32(epoch))
        shapes = {each.first.shape for each in minibatches}
        assert shapes == ({(T, B // 2)} if network is LSTM else {(1, T * B // 2)})
        seen = np.concatenate([each.timestep.observation for each in minibatches], axis=1)
        orders.append(seen[0, :, 0])
        whole = batch.timestep.observation[:-1]
        expected = whole if network is LSTM else whole.reshape(1, T * B, 3)
        # Sorted by a number that no two of them share; those of whole sequences stay in order.
        found = seen[:, np.argsort(seen[0, :, 0])]
        np.testing.assert_array_equal(found, expected[:, np.argsort(expected[0, :, 0])])
    assert len({order.tobytes() for order in orders}) == 3


@BOTH
@pytest.mark.parametrize(
    "network",
    [pytest.param(PLAIN, marks=pytest.mark.slow), STACKED, LSTM],
    ids=["plain", "stacked", "LSTM"],
)
def test_in_a_minibatch_the_network_computes_what_it_does_for_whole_trajectories(
    make: Any, network: NetworkConfig
) -> None:
    """So each step has its own frames, recurrent state, action and targets."""
    config = make(network=network)
    learner, batch = make_learner(config), trajectory(name_of(make), network)
    params = new_state(config).train.params
    add(learner, batch)
    samples = learner.prepare_turn(params, learner._turn).samples
    agent = agent_of(config)
    whole, _ = agent.unroll(params, batch.timestep, batch.initial_state)
    for part in learner.shuffle(samples, jnp.int32(0), np.int32(0)):
        output, _ = agent.unroll(params, part.timestep, part.state)
        found = on_host_rows(output, part)
        expected = on_host_rows(jax.tree.map(lambda leaf: leaf[:-1], whole), batch)
        assert len(found) == T * B // 2
        for key, value in found.items():
            np.testing.assert_allclose(value, expected[key], atol=1e-5)


def on_host_rows(output: Any, part: Any) -> dict[Any, Any]:
    """Output, action and ``first`` of each step, by its observation."""
    observation = part.timestep.observation[: len(part.actor.action)]
    first = part.first if isinstance(part, Samples) else part.timestep.first[1:]
    leaves = [*jax.tree.leaves(output), part.actor.action, first]
    whole = np.concatenate([np.reshape(leaf, (*first.shape, -1)) for leaf in leaves], axis=-1)
    return {np.asarray(observation[i]).tobytes(): whole[i] for i in np.ndindex(first.shape)}


def test_an_agent_with_a_state_of_its_own_learns_from_whole_trajectories() -> None:
    config = ppo(network=STACKED)
    agent = agent_of(config)
    assert make_learner(config)._single_steps
    agent.has_observed_state = False
    optimizer = make_optimizer(config.optimizer)
    learner = algorithms.PPO.make_learner(config, agent, SPEC, optimizer, topology(1))
    assert not learner._single_steps  # type: ignore[attr-defined]
    too_many = dataclasses.replace(config, num_minibatches=3)
    with pytest.raises(ConfigError, match=r"num_minibatches is 3 .* gets 8 trajectories"):
        algorithms.PPO.make_learner(too_many, agent, SPEC, optimizer, topology(1))


# One answer


@BOTH
@pytest.mark.parametrize("learners", [2, 4])
def test_targets_are_the_same_on_any_number_of_devices(make: Any, learners: int) -> None:
    config, batch = make(), trajectory(name_of(make))
    expected, found = prepared(config, batch), prepared(config, batch, learners)
    one, other = (
        {
            row[:3].tobytes(): row[3:]
            for row in np.concatenate(
                [
                    np.asarray(each.samples.timestep.observation)[0],
                    *(
                        np.asarray(leaf)[0, :, None]
                        for leaf in jax.tree.leaves(each.samples.targets)
                    ),
                ],
                axis=-1,
            )
        }
        for each in (expected, found)
    )
    assert len(one) == T * B and one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_allclose(other[key], value, atol=1e-5)
    for name, log in expected.logs.items():
        np.testing.assert_allclose(found.logs[name], log, atol=1e-5)


@BOTH
@pytest.mark.parametrize(
    ("network", "learners"),
    [(PLAIN, 4), *(pytest.param(each, 2, marks=pytest.mark.slow) for each in (PLAIN, LSTM))],
)
def test_an_update_is_the_same_on_any_number_of_devices(
    make: Any, network: NetworkConfig, learners: int
) -> None:
    """With one minibatch: of several, devices choose their own."""
    config, batch = make(num_minibatches=1, network=network), trajectory(name_of(make), network)
    expected, expected_logs = updated(config, batch)
    before = on_host(new_state(config).train.params)
    assert np.abs(on_host(expected.train.params) - before).max() > 1e-3
    state, logs = updated(config, batch, learners)
    np.testing.assert_allclose(on_host(state), on_host(expected), atol=1e-5)
    assert logs == pytest.approx(expected_logs, rel=1e-4, abs=1e-5)


@BOTH
def test_several_lanes_are_one_batch_and_microbatches_one_minibatch(make: Any) -> None:
    config, batch = make(num_minibatches=1), trajectory(name_of(make))
    expected, _ = updated(config, batch)
    halves = dataclasses.replace(config, envs_per_actor=B // 2, num_microbatches=2)
    learner = make_learner(halves)
    add(learner, *shards_of(batch, 2))
    state, _ = learner.update(new_state(halves), 0.0)
    np.testing.assert_allclose(on_host(state), on_host(expected), atol=1e-5)


@BOTH
def test_a_turn_is_a_function_of_its_state_and_another_turn_has_another_order(make: Any) -> None:
    config, batch = make(), trajectory(name_of(make))
    one, other = (updated(config, batch)[0] for _ in range(2))
    np.testing.assert_array_equal(on_host(one), on_host(other))
    assert one.turns == 4
    learner = make_learner(config)
    add(learner, batch)
    state = new_state(config)._replace(turns=jnp.int32(9))
    later, _ = learner.update(state, 0.0)
    assert np.abs(on_host(later.train) - on_host(one.train)).max() > 1e-6


@BOTH
def test_the_compiled_update_reduces_and_never_gathers(make: Any) -> None:
    config = make(num_microbatches=3)
    learner, batch = make_learner(config, 4), trajectory(name_of(make))
    (shard, *_) = shards_of(batch, 4)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shard)
    lowered = learner.lower(new_state(config, 4), shapes)
    assert [count for _, count in lowered] == [1, 2, 2 * 2 * 3, 2 * 2]
    for program, _ in lowered:
        assert set(inspect(program).collectives) <= {"all-reduce"}


# What must not be learned


@pytest.mark.parametrize(("make", "network"), [(ppo, PLAIN), (ppo, LSTM), (pqn, PLAIN)])
def test_nothing_of_the_step_between_two_episodes_is_learned(
    make: Any, network: NetworkConfig
) -> None:
    """Nor is it in the statistics of the advantages. What the step led to is no one's either."""
    config, batch = make(network=network), trajectory(name_of(make), network)
    expected, logs = updated(config, batch)
    over = batch.timestep.first[1:]
    assert over.any() and not over.all()
    action = np.where(over, (batch.actor.action + 1) % 3, batch.actor.action)
    extras = batch.actor.extras
    if make is ppo:
        extras = Behavior(np.where(over, -9, extras.log_prob).astype(np.float32), action)
    reward = np.array(batch.timestep.reward)
    discount = np.array(batch.timestep.discount)
    discount[1:][over] = 0.5
    if network is PLAIN:  # An LSTM sees the reward.
        reward[1:][over] = 50
    changed = batch._replace(
        timestep=batch.timestep._replace(reward=reward, discount=discount),
        actor=ActorOutput(action, extras),
    )
    state, its_logs = updated(config, changed)
    np.testing.assert_array_equal(on_host(state), on_host(expected))
    assert its_logs == logs


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "learners"), [(1, 2), (3, 1)])
def test_observations_count_once_and_are_normalized_alike_in_all_epochs(
    epochs: int, learners: int
) -> None:
    network = dataclasses.replace(PLAIN, normalize_observations=True)
    config = ppo(network=network, num_epochs=epochs)
    batch = trajectory("ppo")
    state, _ = updated(config, batch, learners)
    seen = batch.timestep.observation
    moments = state.train.params[MOMENTS]
    assert float(moments.batches) == 1
    np.testing.assert_allclose(moments.mean[0], seen.mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(moments.variance[0], seen.var((0, 1)), rtol=1e-4)
    # The first moments normalize nothing: parameters become those of a network that never does.
    plain, _ = updated(ppo(num_epochs=epochs), batch, learners)
    rest = {name: leaf for name, leaf in state.train.params.items() if name != MOMENTS}
    np.testing.assert_allclose(on_host(rest), on_host(plain.train.params), atol=1e-6)


# PPO


def slow_targets(values: Any, batch: Trajectory, config: PPOConfig) -> tuple[Any, Any]:
    """Normalized advantages and returns, of one column after the other, in float64."""
    timestep, advantages = batch.timestep, np.zeros((T, B))
    for b in range(B):
        following = 0.0
        for t in reversed(range(T)):
            if timestep.first[t + 1, b]:
                following = 0.0
                continue
            discount = config.discount * timestep.discount[t + 1, b]
            error = timestep.reward[t + 1, b] + discount * values[t + 1, b] - values[t, b]
            following = error + discount * config.lambda_ * following
            advantages[t, b] = following
    returns = values[:-1] + advantages
    valid = ~timestep.first[1:]
    chosen = advantages[valid]
    normalized = np.where(valid, (advantages - chosen.mean()) / chosen.std(), 0)
    return (normalized if config.normalize_advantages else advantages), returns


@pytest.mark.parametrize("normalize", [True, False])
def test_targets_are_those_of_a_slow_loop(normalize: bool) -> None:
    config, batch = ppo(normalize_advantages=normalize, network=LSTM), trajectory("ppo", LSTM)
    params = new_state(config).train.params
    output, _ = agent_of(config).unroll(params, batch.timestep, batch.initial_state)
    found = prepared(config, batch)
    advantages, returns = slow_targets(np.float64(output.value), batch, config)
    np.testing.assert_allclose(found.samples.targets.advantages, advantages, atol=1e-5)
    np.testing.assert_allclose(found.samples.targets.returns, returns, atol=1e-5)
    valid = ~batch.timestep.first[1:]
    errors = (returns - np.float64(output.value)[:-1])[valid]
    explained = 1 - errors.var() / returns[valid].var()
    assert float(found.logs["explained_variance"]) == pytest.approx(explained, abs=1e-4)


BOX = BoxSpec(-np.ones(2, np.float32), np.ones(2, np.float32))


@pytest.mark.parametrize("action", [DiscreteSpec(3), MultiDiscreteSpec((2, 3)), BOX])
def test_the_ratio_is_to_the_policy_that_acted(action: Any) -> None:
    """Of the policy that acts now, it is 1 in the first minibatch, whatever its actions are."""
    spec = SPEC._replace(action=action)
    config = ppo(num_minibatches=1, num_epochs=1)
    batch = trajectory_of(config, spec=spec)
    fresh, stale = (random_params(agent_of(config, spec), seed=seed) for seed in (5, 6))
    for params, is_fresh in ((fresh, True), (stale, False)):
        learner = make_learner(config, spec=spec)
        add(learner, batch)
        samples = learner.prepare_turn(params, learner._turn).samples
        _, logs = learner.loss(params, samples)
        assert (abs(float(logs["approx_kl"])) < 1e-6) == is_fresh
        assert (float(logs["clip_fraction"]) == 0) == is_fresh
        assert np.isfinite(float(logs["entropy"]))


@pytest.mark.slow
def test_epochs_are_left_out_once_the_policy_has_moved_far_enough() -> None:
    batch = trajectory("ppo")
    one, _ = updated(ppo(num_epochs=1), batch)
    whole, _ = updated(ppo(num_epochs=4), batch)
    assert np.abs(on_host(whole.train) - on_host(one.train)).max() > 1e-4
    stopped, _ = updated(ppo(num_epochs=4, target_kl=1e-9), batch)
    np.testing.assert_array_equal(on_host(stopped), on_host(one))
    free, _ = updated(ppo(num_epochs=4, target_kl=1e9), batch)
    np.testing.assert_array_equal(on_host(free), on_host(whole))


def test_the_rate_follows_the_counted_steps() -> None:
    config, batch = ppo(), trajectory("ppo")
    learner = make_learner(config)
    add(learner, batch)
    before = on_host(new_state(config).train.params)
    state, _ = learner.update(new_state(config), 1.0)
    np.testing.assert_array_equal(on_host(state.train.params), before)


def test_images_on_a_cpu_are_learned_in_parts_that_the_cache_holds() -> None:
    spec = EnvSpec(ArraySpec((36, 36), np.dtype(np.uint8)), DiscreteSpec(3), 16)
    network = NetworkConfig(torso="small", hidden_sizes=(8,), frame_stack=2)
    config = ppo(
        network=network, envs_per_actor=16, batch_size=16, unroll_length=20, num_minibatches=2
    )
    # 160 steps, of which at most 96 fit.
    assert make_learner(config, spec=spec).synchronized._num_microbatches == 2
    given = dataclasses.replace(config, num_microbatches=4)
    assert make_learner(given, spec=spec).synchronized._num_microbatches == 4


# PQN


def test_returns_bootstrap_from_the_largest_q_value() -> None:
    config, batch = pqn(network=LSTM), trajectory("pqn", LSTM)
    params = new_state(config).train.params
    q_values, _ = agent_of(config).unroll(params, batch.timestep, batch.initial_state)
    best, timestep = np.float64(q_values).max(-1), batch.timestep
    returns = best.copy()
    for t in reversed(range(T)):
        discount = config.discount * timestep.discount[t + 1]
        mixed = config.lambda_ * returns[t + 1] + (1 - config.lambda_) * best[t + 1]
        target = timestep.reward[t + 1] + discount * mixed
        returns[t] = np.where(timestep.first[t + 1], best[t], target)
    samples = prepared(config, batch).samples
    np.testing.assert_allclose(samples.targets, returns[:-1], atol=1e-5)
    learner = make_learner(config)
    loss, logs = learner.loss(params, samples)
    chosen = np.take_along_axis(np.asarray(q_values)[:-1], batch.actor.action[..., None], -1)[
        ..., 0
    ]
    errors = np.where(timestep.first[1:], 0, returns[:-1] - chosen)
    assert float(loss) == pytest.approx(np.mean(0.5 * errors**2), rel=1e-4)
    assert float(logs["td_error"]) == pytest.approx(np.abs(errors).mean(), rel=1e-4)


def test_the_q_network_has_one_linear_head() -> None:
    params = jax.eval_shape(agent_of(pqn()).init, jax.random.key(0))
    assert params.keys() == {"torso", "Dense_0"}
    assert params["Dense_0"]["kernel"].shape == (16, 3)
