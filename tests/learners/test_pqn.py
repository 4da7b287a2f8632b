"""PQN: its returns and its network."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from epoch_parts import (
    LSTM,
    T,
    agent_of,
    make_learner,
    new_state,
    pqn,
    prepared,
    trajectory,
)


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
    loss, logs = learner.loss(params, samples, np.float32(0))
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
