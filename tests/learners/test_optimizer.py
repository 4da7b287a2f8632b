"""Rates, RMSprop and clipping mean what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from vtrace_parts import make_learner, new_state, random_trajectory, update, whole_gradient

from sebulba import OptimizerConfig
from sebulba.learners import make_optimizer


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
