"""PPO: its targets, its ratio, and when a turn ends early."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from epoch_parts import (
    LSTM,
    OPTIMIZER,
    PLAIN,
    SPEC,
    B,
    T,
    add,
    agent_of,
    make_learner,
    new_state,
    on_host,
    ppo,
    prepared,
    topology,
    trajectory,
    trajectory_of,
    updated,
)
from unrolls import random_params

from sebulba import ConfigError, PolicyValue, PPOConfig
from sebulba.devices.topology import LEARNER_AXIS
from sebulba.learners import PPOLearner, make_optimizer
from sebulba.types import (
    BoxSpec,
    DiscreteSpec,
    MultiDiscreteSpec,
    Trajectory,
)


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


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_explained_variance_has_no_unit(scale: float) -> None:
    learner = make_learner(ppo(network=PLAIN))
    rng = np.random.default_rng(0)
    batch = trajectory("ppo")
    values = rng.normal(size=(T + 1, B)).astype(np.float32)

    def logged(scale: float) -> float:
        reward = np.float32(scale) * batch.timestep.reward
        scaled = batch._replace(timestep=batch.timestep._replace(reward=reward))
        output = PolicyValue(np.float32(0), np.float32(scale) * values)
        targets = jax.vmap(
            learner.targets, in_axes=(None, None), axis_name=LEARNER_AXIS, axis_size=1
        )
        return float(targets(scaled, output)[1]["explained_variance"][0])

    assert logged(scale) == pytest.approx(logged(1.0), rel=1e-3)
    assert np.isnan(logged(0.0))


@pytest.mark.parametrize("reward", [0.1, 0.3, 1.0, 7.3, 1000.1])
def test_advantages_that_are_all_the_same_say_nothing(reward: float) -> None:
    """Their mean is rounded: what is left of each is noise, and not a deviation of one."""
    learner = make_learner(ppo(network=PLAIN))
    batch = trajectory("ppo")
    timestep = batch.timestep._replace(
        reward=np.full((T + 1, B), reward, np.float32), discount=np.zeros((T + 1, B), np.float32)
    )
    output = PolicyValue(np.float32(0), np.zeros((T + 1, B), np.float32))
    targets = jax.vmap(learner.targets, in_axes=(None, None), axis_name=LEARNER_AXIS, axis_size=1)
    found, _ = targets(batch._replace(timestep=timestep), output)
    np.testing.assert_array_equal(found.advantages, 0)


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
        _, logs = learner.loss(params, samples, np.float32(0))
        assert (abs(float(logs["approx_kl"])) < 1e-6) == is_fresh
        assert (float(logs["clip_fraction"]) == 0) == is_fresh
        assert np.isfinite(float(logs["entropy"]))


@pytest.mark.parametrize(
    ("changes", "learners"), [({}, 1), ({"network": LSTM}, 1), ({"num_microbatches": 2}, 2)]
)
def test_kl_and_clip_fraction_are_means_over_the_steps_that_count(
    changes: dict[str, Any], learners: int
) -> None:
    """Not over those that only reset an environment, of which there are many here."""
    # Without a step of the optimizer, all minibatches see the same parameters.
    frozen = dataclasses.replace(OPTIMIZER, learning_rate=1e-30)
    config = ppo(optimizer=frozen, target_kl=1e9, **changes)
    batch = trajectory("ppo", config.network)
    learner = make_learner(config, learners)
    output, _ = agent_of(config).unroll(
        new_state(config).train.params, batch.timestep, batch.initial_state
    )
    log_ratio = (
        learner.distribution.log_prob(output.policy[:-1], batch.actor.extras.raw)
        - batch.actor.extras.log_prob
    )
    log_ratio = np.float64(log_ratio)[~batch.timestep.first[1:]]
    _, logs = updated(config, batch, learners)
    kl = np.mean(np.exp(log_ratio) - 1 - log_ratio)
    assert logs["approx_kl"] == pytest.approx(kl, rel=1e-4)
    clipped = np.mean(np.abs(np.exp(log_ratio) - 1) > config.clip_ratio)
    assert logs["clip_fraction"] == pytest.approx(clipped, rel=1e-5)


@pytest.mark.parametrize("learners", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_weight_of_the_entropy_falls_to_zero(learners: int) -> None:
    batch = trajectory("ppo")

    def params(progress: float, **changes: Any) -> Any:
        # Another progress also changes the learning rate, so only equal ones compare.
        state, _ = updated(ppo(**changes), batch, learners, progress)
        return on_host(state.train.params)

    falling: dict[str, Any] = dict(entropy_cost=0.4, entropy_decay_to_zero=True)
    np.testing.assert_allclose(params(0.25, **falling), params(0.25, entropy_cost=0.3), atol=1e-6)
    assert np.abs(params(0.25, **falling) - params(0.25, entropy_cost=0.4)).max() > 1e-4


def test_an_early_stop_needs_the_log_that_it_looks_at() -> None:
    class Own(PPOLearner):
        def loss(self, *given: Any) -> Any:
            return super().loss(*given)[0], {}

    config = ppo(target_kl=0.1)
    own = Own(config, agent_of(config), SPEC, make_optimizer(config.optimizer), topology(1))
    add(own, trajectory("ppo"))
    with pytest.raises(ConfigError, match=r"target_kl is 0\.1, but Own\.loss has no log approx_kl"):
        own.update(new_state(config), 0.0)


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
