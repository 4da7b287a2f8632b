"""The other losses against slow loops and float64 NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba import losses

n_step_double_q = jax.jit(losses.n_step_double_q, static_argnames="n")
GAMMA = 0.9
EPSILON = 1e-3


def h(x: Any) -> Any:
    """As printed in the paper, in float64."""
    x = np.asarray(x, np.float64)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + EPSILON * x


def inverse_h(x: Any) -> Any:
    """As printed in the paper, in float64."""
    x = np.asarray(x, np.float64)
    root = np.sqrt(1 + 4 * EPSILON * (np.abs(x) + 1 + EPSILON))
    return np.sign(x) * (((root - 1) / (2 * EPSILON)) ** 2 - 1)


def random_unroll(seed: int, length: int = 12, batch: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    """Several episodes in each column, some terminated and some truncated."""
    rng = np.random.default_rng(seed)
    first = rng.random((length, batch)) < 0.2
    discounts = np.where(rng.random((length, batch)) < 0.2, 0.0, GAMMA)
    return {
        "q_online": rng.normal(size=(length + 1, batch, 3)).astype(np.float32),
        "q_target": rng.normal(size=(length + 1, batch, 3)).astype(np.float32),
        "actions": rng.integers(3, size=(length, batch)),
        "rewards": rng.normal(size=(length, batch)).astype(np.float32),
        "discounts": np.where(first, GAMMA, discounts).astype(np.float32),
        "first": first,
    }


# Policy gradient, baseline and entropy.


def test_actor_critic_terms_by_hand() -> None:
    first = jnp.array([[False, True]])
    log_probs, advantages = jnp.array([[-2.0, -3.0]]), jnp.array([[0.5, 7.0]])
    values, targets = jnp.array([[1.0, 1.0], [9.0, 9.0]]), jnp.array([[4.0, 8.0]])
    loss = losses.policy_gradient_loss(log_probs, advantages, first)
    np.testing.assert_allclose(loss, [[1.0, 0.0]])
    np.testing.assert_allclose(losses.baseline_loss(values, targets, first), [[4.5, 0.0]])
    np.testing.assert_allclose(losses.entropy_loss(jnp.array([[0.6, 0.7]]), first), [[-0.6, 0.0]])


def test_gradients_reach_the_policy_and_the_values_only() -> None:
    first = jnp.array([[False, True]])
    ones, twos = jnp.ones((1, 2)), jnp.full((2, 2), 2.0)

    def actor(log_probs: jax.Array, advantages: jax.Array) -> jax.Array:
        return jnp.sum(losses.policy_gradient_loss(log_probs, advantages, first))

    def critic(values: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.sum(losses.baseline_loss(values, targets, first))

    to_log_probs, to_advantages = jax.grad(actor, argnums=(0, 1))(ones, 3.0 * ones)
    np.testing.assert_allclose(to_log_probs, [[-3.0, 0.0]])
    assert not np.any(to_advantages)
    to_values, to_targets = jax.grad(critic, argnums=(0, 1))(twos, ones)
    np.testing.assert_allclose(to_values, [[1.0, 0.0], [0.0, 0.0]])
    assert not np.any(to_targets)


def test_mean_loss_is_the_same_however_the_batch_is_split() -> None:
    first = jnp.zeros((4, 6), bool).at[1:, 0].set(True)
    terms = losses.entropy_loss(jax.random.normal(jax.random.key(0), (4, 6)), first)
    parts = [losses.mean_loss(part) for part in jnp.split(terms, 3, axis=1)]
    np.testing.assert_allclose(losses.mean_loss(terms), np.mean(parts), rtol=1e-6)
    np.testing.assert_allclose(losses.mean_loss(terms), np.sum(terms) / 24, rtol=1e-6)


# Value rescaling.


def magnitudes(largest: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    positive = np.geomspace(1e-12, largest, 2001).astype(np.float32)
    return np.concatenate([-positive, [np.float32(0.0)], positive])


def test_rescaling_equals_the_paper_in_float64() -> None:
    # The paper's form of h(x) loses digits below 1e-3 even in float64; its slope is exact there.
    x = magnitudes(1e6)
    x = x[(np.abs(x) > 1e-3) | (x == 0)]
    np.testing.assert_allclose(losses.rescale(jnp.asarray(x)), h(x), rtol=1e-6)
    np.testing.assert_allclose(losses.inverse_rescale(jnp.asarray(x)), inverse_h(x), rtol=3e-6)


def test_rescaling_and_its_inverse_undo_each_other() -> None:
    x = jnp.asarray(magnitudes(1e6))
    np.testing.assert_allclose(losses.rescale(losses.inverse_rescale(x)), x, rtol=1e-5)
    np.testing.assert_allclose(losses.inverse_rescale(losses.rescale(x)), x, rtol=1e-5)


def test_rescaling_gradients_are_finite_and_right_at_0() -> None:
    x = jnp.asarray(magnitudes(1e6))
    slope, inverse_slope = jax.grad(losses.rescale), jax.grad(losses.inverse_rescale)
    assert np.all(np.isfinite(jax.jit(jax.vmap(slope))(x)))
    assert np.all(np.isfinite(jax.jit(jax.vmap(inverse_slope))(x)))
    for near_zero in (-1e-20, 0.0, 1e-20):
        np.testing.assert_allclose(slope(near_zero), 0.5 + EPSILON, rtol=1e-6)
        np.testing.assert_allclose(inverse_slope(near_zero), 1 / (0.5 + EPSILON), rtol=1e-6)


# n-step double Q-learning.


def slow_targets(
    q_online: Any, q_target: Any, actions: Any, rewards: Any, discounts: Any, first: Any, n: int
) -> np.ndarray[Any, Any]:
    """Walk forward from each t until n steps, the end of the episode or the end of the unroll."""
    targets = np.zeros(rewards.shape)
    for t, b in np.ndindex(*rewards.shape):
        total, weight, k = 0.0, 1.0, t
        while k < min(t + n, len(rewards)) and not first[k, b]:
            total += weight * rewards[k, b]
            weight *= discounts[k, b]
            k += 1
        bootstrap = inverse_h(q_target[k, b, np.argmax(q_online[k, b])])
        targets[t, b] = h(total + weight * bootstrap)
    return targets


@pytest.mark.parametrize("n", [1, 3, 5, 12, 20])
def test_n_step_double_q_equals_the_slow_loop(n: int) -> None:
    for seed in range(10):
        unroll = random_unroll(seed)
        output = n_step_double_q(**unroll, n=n)
        targets = slow_targets(**unroll, n=n)
        np.testing.assert_allclose(output.targets, targets, rtol=1e-4, atol=1e-5)
        q = np.take_along_axis(unroll["q_online"][:-1], unroll["actions"][..., None], -1)[..., 0]
        errors = np.where(unroll["first"], 0.0, targets - q)
        np.testing.assert_allclose(output.td_errors, errors, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(output.loss, 0.5 * errors**2, rtol=1e-3, atol=1e-5)


def test_n_step_double_q_equals_rlax_without_auto_reset() -> None:
    # Only without `first`: rlax knows of no transition that is not part of the problem.
    rlax = pytest.importorskip("rlax")
    unroll = random_unroll(0)
    unroll["first"][:] = False

    def column(q: Any, q_target: Any, actions: Any, rewards: Any, discounts: Any) -> Any:
        return rlax.transformed_n_step_q_learning(
            q[:-1],
            actions,
            q_target[1:],
            jnp.argmax(q[1:], -1),
            rewards,
            discounts,
            n=5,
            tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR,
        )

    arguments = [jnp.asarray(array) for name, array in unroll.items() if name != "first"]
    oracle = jax.jit(jax.vmap(column, in_axes=1, out_axes=1))(*arguments)
    output = n_step_double_q(**unroll, n=5)
    # rlax's inverse is the paper's form, which is good to about 1e-4 in float32.
    np.testing.assert_allclose(output.td_errors, oracle, atol=1e-3)


@pytest.mark.parametrize("last_discount", [0.0, GAMMA], ids=["terminated", "truncated"])
def test_nothing_of_the_next_episode_reaches_the_last_one(last_discount: float) -> None:
    cut = 5  # Timestep 5 is the last of the first episode, timestep 6 the first of the second.
    unroll = random_unroll(0)
    unroll["first"][:] = False
    unroll["first"][cut] = True
    unroll["discounts"][cut - 1] = last_discount
    other = {name: array.copy() for name, array in unroll.items()}
    for name in ("actions", "rewards", "discounts"):
        other[name][cut:] = random_unroll(1)[name][cut:]
    for name in ("q_online", "q_target"):
        other[name][cut + 1 :] += np.arange(-100.0, 200.0, 100.0, dtype=np.float32)

    output, changed = n_step_double_q(**unroll), n_step_double_q(**other)
    for before, after in zip(output, changed, strict=True):
        np.testing.assert_array_equal(before[: cut + 1], after[: cut + 1])
        assert not np.allclose(before[cut + 1 :], after[cut + 1 :])
    assert not np.any(output.td_errors[cut])


def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not() -> None:
    values = jnp.array([[1.0, 1.0], [10.0, 10.0], [100.0, 100.0]])
    rewards = jnp.full((2, 2), 3.0)
    discounts = jnp.array([[0.0, GAMMA], [GAMMA, GAMMA]])
    first = jnp.array([[False, False], [True, True]])
    returns = losses.n_step_returns(values, rewards, discounts, first, n=5)
    np.testing.assert_allclose(returns[0], [3.0, 3.0 + GAMMA * 10.0])


def test_n_step_gradient_reaches_only_q_of_the_actions_taken() -> None:
    unroll = random_unroll(0)

    def total(q_online: jax.Array, q_target: jax.Array) -> jax.Array:
        arguments = {**unroll, "q_online": q_online, "q_target": q_target}
        return jnp.sum(n_step_double_q(**arguments).loss)

    to_online, to_target = jax.grad(total, argnums=(0, 1))(unroll["q_online"], unroll["q_target"])
    expected = np.zeros(unroll["q_online"].shape)
    errors = np.asarray(n_step_double_q(**unroll).td_errors)
    np.put_along_axis(expected[:-1], unroll["actions"][..., None], -errors[..., None], -1)
    np.testing.assert_allclose(to_online, expected, rtol=1e-6)
    assert not np.any(to_target)


@pytest.mark.parametrize("name", ["q_online", "q_target", "actions", "rewards", "discounts"])
def test_n_step_refuses_an_array_of_another_length(name: str) -> None:
    unroll = random_unroll(0)
    unroll[name] = unroll[name][1:]
    with pytest.raises(ValueError, match=r"has shape .* expected"):
        n_step_double_q(**unroll)


def test_n_step_refuses_less_than_one_step() -> None:
    with pytest.raises(ValueError, match="pass n >= 1"):
        n_step_double_q(**random_unroll(0), n=0)


# Priorities.


def test_sequence_priorities_are_over_valid_steps() -> None:
    td_errors = jnp.array([[1.0, -4.0, 9.0], [-3.0, 100.0, 9.0]])
    first = jnp.array([[False, False, True], [False, True, True]])
    priorities = losses.sequence_priorities(td_errors, first, eta=0.9)
    np.testing.assert_allclose(priorities, [0.9 * 3.0 + 0.1 * 2.0, 4.0, 0.0], rtol=1e-6)


def test_importance_weights() -> None:
    probabilities = jnp.array([0.5, 0.25, 0.125])
    weights = losses.importance_weights(probabilities, size=4, beta=0.5)
    np.testing.assert_allclose(weights, [2**-0.5, 1.0, 2**0.5], rtol=1e-6)
    normalized = losses.normalize_importance_weights(weights, jnp.max(weights))
    np.testing.assert_allclose(normalized, [0.5, 2**-0.5, 1.0], rtol=1e-6)
    uniform = losses.importance_weights(jnp.full(3, 1e-6), size=1_000_000, beta=0.6)
    np.testing.assert_allclose(uniform, np.ones(3), rtol=1e-6)
