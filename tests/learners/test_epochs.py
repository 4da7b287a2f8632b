"""PPO and PQN: targets, what must not be learned, and one answer on any number of devices."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from epoch_parts import (
    BOTH,
    BOTH_IN_TURN,
    LSTM,
    PLAIN,
    SPEC,
    STACKED,
    B,
    T,
    add,
    agent_of,
    make_learner,
    name_of,
    new_state,
    on_host,
    ppo,
    pqn,
    prepared,
    topology,
    trajectory,
    updated,
)
from unrolls import shards_of

from sebulba import (
    Behavior,
    ConfigError,
    NetworkConfig,
    PolicyAgent,
)
from sebulba.agents.networks import MOMENTS
from sebulba.devices.compiler import inspect
from sebulba.learners import PPOLearner, epochs, make_optimizer
from sebulba.types import (
    ActorOutput,
    ArraySpec,
    DiscreteSpec,
    EnvSpec,
)


@pytest.mark.parametrize("method", ["targets", "loss"])
def test_targets_and_loss_without_logs_are_refused(method: str) -> None:
    learner = make_learner(ppo())
    setattr(learner, method, lambda *_: jnp.float32(0))
    add(learner, trajectory("ppo"))
    with pytest.raises(ConfigError, match=rf"PPOLearner\.{method} returns float32\[\]: .*{method}"):
        learner.update(new_state(ppo()), 0.0)


# Targets


@BOTH
def test_targets_are_the_same_from_a_few_environments_at_a_time(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, batch = make(network=STACKED), trajectory(name_of(make), STACKED)
    whole = prepared(config, batch)
    sizes = []

    def unroll(self: Any, params: Any, timesteps: Any, state: Any) -> Any:
        sizes.append(timesteps.first.shape)
        return of_class(self, params, timesteps, state)

    kind = type(agent_of(config))
    of_class = kind.unroll
    monkeypatch.setattr(kind, "unroll", unroll)
    monkeypatch.setattr(epochs, "fewest", lambda *_: 4)
    in_parts = prepared(config, batch)
    assert (T + 1, B // 4) in sizes
    assert (T + 1, B) not in sizes
    for found, expected in zip(jax.tree.leaves(in_parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


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


@BOTH_IN_TURN
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


@BOTH_IN_TURN
def test_several_lanes_are_one_batch_and_microbatches_one_minibatch(make: Any) -> None:
    config, batch = make(), trajectory(name_of(make))
    expected, expected_logs = updated(config, batch)
    halves = dataclasses.replace(config, envs_per_actor=B // 2, num_microbatches=2)
    learner = make_learner(halves)
    add(learner, *shards_of(batch, 2))
    state, logs = learner.update(new_state(halves), 0.0)
    np.testing.assert_allclose(on_host(state), on_host(expected), atol=1e-5)
    assert on_host(logs) == pytest.approx(on_host(expected_logs), rel=1e-4, abs=1e-5)


@BOTH_IN_TURN
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


@BOTH_IN_TURN
@pytest.mark.parametrize(
    ("num_microbatches", "times"), [(None, [1, 2, 2]), (3, [1, 2, 2 * 2 * 3, 2 * 2])]
)
def test_the_compiled_update_reduces_and_never_gathers(
    make: Any, num_microbatches: int | None, times: list[int]
) -> None:
    config = make(num_microbatches=num_microbatches)
    learner, batch = make_learner(config, 4), trajectory(name_of(make))
    (shard, *_) = shards_of(batch, 4)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shard)
    lowered = learner.lower(new_state(config, 4), shapes)
    assert [count for _, count in lowered] == times
    for program, _ in lowered:
        assert set(inspect(program).collectives) <= {"all-reduce"}


@pytest.mark.parametrize("shape", [(), (B,), (1, B), (B, T)])
def test_targets_of_other_axes_are_refused(shape: tuple[int, ...]) -> None:
    """Steps would be paired with the targets of other steps."""

    class Other(PPOLearner):
        def targets(self, *given: Any) -> Any:
            return {"mine": jnp.zeros(shape)}, {}

    config = ppo()
    other = Other(config, agent_of(config), SPEC, make_optimizer(config.optimizer), topology(1))
    add(other, trajectory("ppo"))
    with pytest.raises(ConfigError, match=r"Other.targets: .*mine.*\[T, B\]"):
        other.update(new_state(config), 0.0)


@pytest.mark.parametrize("name", ["loss", "gradient_norm", "approx_kl"])
def test_logs_of_the_targets_that_the_loss_has_too_are_refused(name: str) -> None:
    class Other(PPOLearner):
        def targets(self, *given: Any) -> Any:
            return super().targets(*given)[0], {name: jnp.float32(0)}

    config = ppo()
    other = Other(config, agent_of(config), SPEC, make_optimizer(config.optimizer), topology(1))
    add(other, trajectory("ppo"))
    with pytest.raises(ConfigError, match=f"Other.targets has a log '{name}', .* Rename it"):
        other.update(new_state(config), 0.0)


# What must not be learned


@pytest.mark.parametrize(
    ("make", "network"),
    [(ppo, PLAIN), pytest.param(ppo, LSTM, marks=pytest.mark.slow), (pqn, PLAIN)],
)
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


def test_epochs_that_are_left_out_neither_count_nor_compile_anything() -> None:
    learner = make_learner(ppo(num_epochs=3))
    learner.is_enough = mock.Mock(side_effect=[True, False, True])
    logs = []
    for _ in range(2):
        add(learner, trajectory("ppo"))
        logs.append(learner.update(new_state(ppo()), 0.0)[1])
    for number, its_logs in enumerate(logs, start=1):
        _, expected = updated(ppo(num_epochs=number), trajectory("ppo"))
        assert {name: float(log) for name, log in its_logs.items()} == pytest.approx(expected)
    assert learner._finish._cache_size() == 1


def test_the_rate_follows_the_counted_steps() -> None:
    config, batch = ppo(), trajectory("ppo")
    learner = make_learner(config)
    add(learner, batch)
    before = on_host(new_state(config).train.params)
    state, _ = learner.update(new_state(config), 1.0)
    np.testing.assert_array_equal(on_host(state.train.params), before)


class OwnAgent:
    """A reference agent in the clothes of one of the user's own."""

    def __init__(self, agent: Any) -> None:
        self.initial_state, self.unroll = agent.initial_state, agent.unroll


class Heir(PolicyAgent):
    """An agent of the user's own, which has the reference agent's methods."""

    def __init__(self, agent: PolicyAgent) -> None:
        self.__dict__ = agent.__dict__


@pytest.mark.parametrize(
    ("make_own", "num_microbatches", "programs"),
    [
        (None, None, 0),
        pytest.param(None, 1, 0, marks=pytest.mark.slow),
        (None, 2, 4),
        pytest.param(OwnAgent, None, 4, marks=pytest.mark.slow),
        (Heir, None, 4),
    ],
)
def test_an_epoch_is_one_program_without_microbatches_and_convolutions_of_other_kinds(
    make_own: Any, num_microbatches: int | None, programs: int
) -> None:
    config = ppo(num_microbatches=num_microbatches)
    agent = agent_of(config)
    optimizer = make_optimizer(config.optimizer)
    learner: Any = PPOLearner(
        config, make_own(agent) if make_own else agent, SPEC, optimizer, topology(1)
    )
    learner.synchronized = spy = mock.Mock(wraps=learner.synchronized)
    add(learner, trajectory("ppo"))
    state, _ = learner.update(new_state(config), 0.0)
    assert spy.call_count == programs
    expected, _ = updated(ppo(), trajectory("ppo"))
    np.testing.assert_allclose(on_host(state), on_host(expected), atol=1e-5)


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
