"""PPO's losses by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba import losses

CLIP = 0.2
# Ratio, advantage, and whether the limit holds the policy back from going on.
CASES = [(1.0, 2.0, False), (1.1, 2.0, False), (1.5, 2.0, True), (0.5, 2.0, False)]
CASES += [(1.1, -2.0, False), (1.5, -2.0, False), (0.9, -2.0, False), (0.5, -2.0, True)]


def policy_loss(
    log_probs: Any, behavior: Any, advantages: Any, first: Any
) -> losses.ClippedPolicyOutput:
    return losses.clipped_policy_loss(log_probs, behavior, advantages, first, CLIP)


@pytest.mark.parametrize(("ratio", "advantage", "is_held"), CASES)
def test_the_gradient_ends_where_the_ratio_has_gone_far_enough(
    ratio: float, advantage: float, is_held: bool
) -> None:
    log_probs, behavior = jnp.full((1, 1), np.log(ratio) - 1.0), jnp.full((1, 1), -1.0)
    advantages, first = jnp.full((1, 1), advantage), jnp.zeros((1, 1), bool)
    output = policy_loss(log_probs, behavior, advantages, first)
    limited = min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    assert float(output.loss[0, 0]) == pytest.approx(-limited, rel=1e-5)
    assert float(output.approx_kl[0, 0]) == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-6)
    assert bool(output.is_clipped[0, 0]) == (abs(ratio - 1) > CLIP)
    gradient = jax.grad(lambda x: policy_loss(x, behavior, advantages, first).loss.sum())(log_probs)
    expected = 0.0 if is_held else -ratio * advantage
    assert float(gradient[0, 0]) == pytest.approx(expected, rel=1e-5)


def test_at_first_its_gradient_is_that_of_the_policy_gradient() -> None:
    rng = np.random.default_rng(0)
    log_probs, advantages = rng.normal(size=(2, 5, 3)).astype(np.float32)
    first = rng.random((5, 3)) < 0.3

    def ours(x: Any) -> Any:
        return policy_loss(x, log_probs, advantages, first).loss.sum()

    def plain(x: Any) -> Any:
        return losses.policy_gradient_loss(x, advantages, first).sum()

    np.testing.assert_allclose(jax.grad(ours)(log_probs), jax.grad(plain)(log_probs), rtol=1e-6)


def test_nothing_of_a_masked_step_is_there_even_if_its_ratio_overflows() -> None:
    first = jnp.array([[True, False]])
    behavior, advantages = jnp.array([[-500.0, -1.0]]), jnp.array([[3.0, 0.5]])
    log_probs = jnp.array([[-1.0, -1.0]])
    output = policy_loss(log_probs, behavior, advantages, first)
    assert [float(leaf[0, 0]) for leaf in output] == [0, 0, 0]
    gradient = jax.grad(lambda x: policy_loss(x, behavior, advantages, first).loss.sum())(log_probs)
    np.testing.assert_allclose(gradient, [[0.0, -0.5]])
    values, targets = jnp.array([[1.0, 1.0]]), jnp.array([[7.0, 3.0]])
    for clip in (None, CLIP):
        loss = losses.clipped_value_loss(values, values, targets, first, clip)
        np.testing.assert_allclose(loss, [[0.0, 2.0]])


@pytest.mark.parametrize("advantage", [3.0, 0.0, -3.0])
def test_a_ratio_that_overflows_is_finite(advantage: float) -> None:
    first, behavior = jnp.zeros((1, 1), bool), jnp.full((1, 1), -101.0)
    advantages, log_probs = jnp.full((1, 1), advantage), jnp.full((1, 1), -1.0)
    output = policy_loss(log_probs, behavior, advantages, first)
    gradient = jax.grad(lambda x: policy_loss(x, behavior, advantages, first).loss.sum())(log_probs)
    assert all(np.isfinite(leaf).all() for leaf in (*output, gradient))
    assert bool(output.is_clipped[0, 0])
    if advantage >= 0:
        assert float(output.loss[0, 0]) == pytest.approx(-1.2 * advantage)
        assert float(gradient[0, 0]) == 0


def test_values_are_held_back_too() -> None:
    before, targets = jnp.zeros((1, 4)), jnp.array([[1.0, 1.0, 1.0, -1.0]])
    values, first = jnp.array([[0.1, 0.5, -0.5, 0.5]]), jnp.zeros((1, 4), bool)

    def total(values: Any, clip: float | None) -> Any:
        return losses.clipped_value_loss(values, before, targets, first, clip).sum()

    loss = losses.clipped_value_loss(values, before, targets, first, CLIP)
    # Towards its target the second has gone far enough; the last two went the wrong way.
    np.testing.assert_allclose(loss, [[0.405, 0.32, 1.125, 1.125]], rtol=1e-5)
    np.testing.assert_allclose(jax.grad(total)(values, CLIP), [[-0.9, 0, -1.5, 1.5]], rtol=1e-5)
    free = losses.clipped_value_loss(values, before, targets, first, None)
    np.testing.assert_allclose(free, [[0.405, 0.125, 1.125, 1.125]], rtol=1e-5)


def test_other_shapes_are_refused() -> None:
    good, bad = jnp.zeros((5, 3)), jnp.zeros((6, 3))
    first = jnp.zeros((5, 3), bool)
    with pytest.raises(ValueError, match="behavior_log_probs has shape"):
        policy_loss(good, bad, good, first)
    with pytest.raises(ValueError, match="values_before has shape"):
        losses.clipped_value_loss(good, bad, good, first, CLIP)
