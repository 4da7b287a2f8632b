"""Minibatches hold each step once, in an order of their own, with all that belongs to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from epoch_parts import (
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
    ppo,
    topology,
    trajectory,
)

from sebulba import ConfigError, NetworkConfig, algorithms
from sebulba.learners import make_optimizer
from sebulba.learners.minibatches import Samples


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
        minibatches = learner.minibatches(samples, jnp.int32(turn), np.int32(epoch))
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


@BOTH_IN_TURN
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
    for part in learner.minibatches(samples, jnp.int32(0), np.int32(0)):
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
