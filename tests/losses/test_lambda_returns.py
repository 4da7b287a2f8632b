"""Advantages and lambda returns against sums of n-step returns, in float64 and by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba import losses

lambda_returns = jax.jit(losses.lambda_returns)
generalized_advantages = jax.jit(losses.generalized_advantages)
GAMMA, LAMBDA = 0.9, 0.8
Array = np.ndarray[Any, Any]


def random_unroll(seed: int, length: int = 12, batch: int = 4) -> dict[str, Array]:
    """Episodes of several lengths in each column, some terminated and some truncated."""
    rng = np.random.default_rng(seed)
    first = rng.random((length, batch)) < rng.choice([0.0, 0.1, 0.3])
    discounts = np.where(rng.random((length, batch)) < 0.2, 0.0, GAMMA)
    return {
        "values": rng.normal(size=(length + 1, batch)).astype(np.float32),
        "rewards": rng.normal(size=(length, batch)).astype(np.float32),
        "discounts": np.where(first, GAMMA, discounts).astype(np.float32),
        "first": first,
    }


def n_step_return(values: Array, rewards: Array, discounts: Array, n: int) -> float:
    """Of the first timestep of one episode, which bootstraps after n steps."""
    total, weight = 0.0, 1.0
    for k in range(n):
        total += weight * rewards[k]
        weight *= discounts[k]
    return total + weight * values[n]


def slow_returns(unroll: dict[str, Array], lambda_: float) -> Array:
    """The mixture of all n-step returns (Sutton and Barto 2018, eq. 12.3), step by step.

    What is left of an episode or of the unroll is cut out first: there is no mask.
    """
    values, rewards, discounts = (
        unroll[name].astype(np.float64) for name in ("values", "rewards", "discounts")
    )
    first, found = unroll["first"], np.full(rewards.shape, np.nan)
    for t, b in np.argwhere(~first):
        resets = np.flatnonzero(first[t:, b])
        left = int(resets[0]) if len(resets) else len(first) - t
        part = slice(t, t + left)
        episode = values[t : t + left + 1, b], rewards[part, b], discounts[part, b]
        returns = [n_step_return(*episode, n) for n in range(1, left + 1)]
        mixed = sum((1 - lambda_) * lambda_**k * g for k, g in enumerate(returns[:-1]))
        found[t, b] = mixed + lambda_ ** (left - 1) * returns[-1]
    return found


@pytest.mark.parametrize("lambda_", [0.0, LAMBDA, 1.0])
def test_returns_are_those_of_a_slow_loop_over_whole_episodes(lambda_: float) -> None:
    """100 unrolls, side by side."""
    unrolls = [random_unroll(seed) for seed in range(100)]
    unroll = {name: np.concatenate([each[name] for each in unrolls], 1) for name in unrolls[0]}
    expected, masked = slow_returns(unroll, lambda_), unroll["first"]
    with jax.enable_x64(True):
        in_float64 = {
            name: array if array.dtype == bool else array.astype(np.float64)
            for name, array in unroll.items()
        }
        returns = np.asarray(lambda_returns(**in_float64, lambda_=lambda_))
        advantages = np.asarray(generalized_advantages(**in_float64, lambda_=lambda_))
    assert returns.dtype == advantages.dtype == np.float64
    np.testing.assert_allclose(returns[~masked], expected[~masked], atol=1e-6)
    difference = (expected - unroll["values"][:-1])[~masked]
    np.testing.assert_allclose(advantages[~masked], difference, atol=1e-6)
    np.testing.assert_array_equal(advantages[masked], 0)


def test_float32_has_enough_digits() -> None:
    for seed in range(5):
        unroll = random_unroll(seed, length=64)
        expected, masked = slow_returns(unroll, LAMBDA), unroll["first"]
        returns = lambda_returns(**unroll, lambda_=LAMBDA)
        assert returns.dtype == np.float32
        np.testing.assert_allclose(returns[~masked], expected[~masked], atol=1e-5)


def test_equals_rlax_without_auto_reset() -> None:
    rlax = pytest.importorskip("rlax")
    advantages_of = jax.jit(rlax.truncated_generalized_advantage_estimation)
    returns_of = jax.jit(rlax.lambda_returns)
    for seed in range(10):
        unroll = random_unroll(seed)
        unroll["first"][:] = False
        values, rewards, discounts = (unroll[name] for name in ("values", "rewards", "discounts"))
        advantages = generalized_advantages(**unroll, lambda_=LAMBDA)
        returns = lambda_returns(**unroll, lambda_=LAMBDA)
        for b in range(rewards.shape[1]):
            expected = advantages_of(rewards[:, b], discounts[:, b], LAMBDA, values[:, b])
            np.testing.assert_allclose(advantages[:, b], expected, atol=1e-5)
            expected = returns_of(rewards[:, b], discounts[:, b], values[1:, b], LAMBDA)
            np.testing.assert_allclose(returns[:, b], expected, atol=1e-5)


def test_the_end_of_an_episode_by_hand() -> None:
    """A truncated and a terminated episode of two steps, the reset, and a step of the next one."""
    values = jnp.array([[1.0, 1], [2, 2], [4, 4], [100, 100], [8, 8]])
    rewards = jnp.array([[1.0, 1], [1, 1], [0, 0], [1, 1]])
    discounts = jnp.array([[0.5, 0.5], [0.5, 0.0], [0.5, 0.5], [0.5, 0.5]])
    first = jnp.array([[False, False], [False, False], [True, True], [False, False]])
    returns = lambda_returns(values, rewards, discounts, first, 0.5)
    # Truncation: 1 + 0.5 * 4, of the last observation; termination: 1. Nothing of the 100.
    np.testing.assert_allclose(returns[1], [3.0, 1.0])
    # 1 + 0.5 * (0.5 * the return of the next step + 0.5 * its value, 2).
    np.testing.assert_allclose(returns[0], [2.25, 1.75])
    np.testing.assert_allclose(returns[3], [5.0, 5.0])


def test_they_get_no_gradient() -> None:
    unroll = random_unroll(0)
    values = unroll.pop("values")
    for function in (losses.lambda_returns, losses.generalized_advantages):
        total = jax.grad(lambda values, f=function: f(values, **unroll, lambda_=LAMBDA).sum())
        np.testing.assert_array_equal(total(values), 0)


@pytest.mark.parametrize("name", ["values", "rewards", "discounts"])
def test_other_shapes_are_refused(name: str) -> None:
    unroll = random_unroll(0)
    unroll[name] = unroll[name][:-1]
    with pytest.raises(ValueError, match=f"{name} has shape"):
        losses.generalized_advantages(**unroll, lambda_=LAMBDA)
