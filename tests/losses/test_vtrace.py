"""V-trace against eq. 1 of Espeholt et al. (2018), written as the sum and the product it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba import losses

vtrace = jax.jit(losses.vtrace)
GAMMA = 0.9
SETTINGS = (
    {},
    {"lambda_": 0.7},
    {"clip_rho": 2.0, "clip_c": 1.5, "clip_pg_rho": 0.8},
    {"lambda_": 0.95, "clip_rho": float("inf"), "clip_c": float("inf"), "clip_pg_rho": 3.0},
)


def random_unroll(seed: int, length: int = 12, batch: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    """Several episodes in each column, some terminated and some truncated."""
    rng = np.random.default_rng(seed)
    first = rng.random((length, batch)) < 0.25
    discounts = np.where(rng.random((length, batch)) < 0.2, 0.0, GAMMA)
    return {
        "log_rhos": rng.normal(size=(length, batch)).astype(np.float32),
        "rewards": rng.normal(size=(length, batch)).astype(np.float32),
        "discounts": np.where(first, GAMMA, discounts).astype(np.float32),
        "values": rng.normal(size=(length + 1, batch)).astype(np.float32),
        "first": first,
    }


def episodes(first: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """(start, end): transitions start .. end - 1 are one episode's, timestep ``end`` its last."""
    bounds, start = [], 0
    for t, starts_anew in enumerate(first):
        if starts_anew:
            bounds.append((start, t))
            start = t + 1
    return [*bounds, (start, len(first))]


def slow_vtrace(
    log_rhos: Any,
    rewards: Any,
    discounts: Any,
    values: Any,
    first: Any,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Each episode on its own, as if the unroll had ended with it."""
    targets, advantages = values[:-1].astype(np.float64), np.zeros(rewards.shape)
    for b in range(rewards.shape[1]):
        ratio = np.exp(log_rhos[:, b].astype(np.float64))
        r, gamma, V = rewards[:, b], discounts[:, b], values[:, b].astype(np.float64)
        rho, c = np.minimum(clip_rho, ratio), lambda_ * np.minimum(clip_c, ratio)
        for start, end in episodes(first[:, b]):
            v = V.copy()
            for s in range(start, end):
                for t in range(s, end):
                    delta = rho[t] * (r[t] + gamma[t] * V[t + 1] - V[t])
                    v[s] += np.prod(gamma[s:t]) * np.prod(c[s:t]) * delta
            for s in range(start, end):
                q = r[s] + gamma[s] * v[s + 1]
                advantages[s, b] = min(clip_pg_rho, ratio[s]) * (q - V[s])
                targets[s, b] = v[s]
    return targets, advantages


@pytest.mark.parametrize("settings", SETTINGS)
def test_equals_the_sum_form_of_the_paper(settings: dict[str, float]) -> None:
    for seed in range(10):
        unroll = random_unroll(seed)
        targets, advantages = slow_vtrace(**unroll, **settings)
        output = vtrace(**unroll, **settings)
        np.testing.assert_allclose(output.targets, targets, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(output.advantages, advantages, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"clip_rho": 2.0, "clip_pg_rho": 0.8}])
def test_equals_rlax_without_auto_reset(settings: dict[str, float]) -> None:
    # Only without `first`: rlax's sample_mask carries the sum over masked steps, from one episode
    # to the one before. Only with lambda 1: below it rlax mixes V(x_{s+1}) into the advantage,
    # where section 4.2 has v_{s+1}. Its c-bar is always 1.
    rlax = pytest.importorskip("rlax")
    unroll = random_unroll(0)
    unroll["first"][:] = False
    names = {"clip_rho": "clip_rho_threshold", "clip_pg_rho": "clip_pg_rho_threshold"}
    oracle = jax.vmap(
        lambda *args: rlax.vtrace_td_error_and_advantage(
            *args, **{names[name]: value for name, value in settings.items()}
        ),
        in_axes=1,
        out_axes=1,
    )(
        unroll["values"][:-1],
        unroll["values"][1:],
        unroll["rewards"],
        unroll["discounts"],
        np.exp(unroll["log_rhos"]),
    )
    output = vtrace(**unroll, **settings)
    np.testing.assert_allclose(output.targets - unroll["values"][:-1], oracle.errors, atol=1e-5)
    np.testing.assert_allclose(output.advantages, oracle.pg_advantage, atol=1e-5)


def test_on_policy_it_is_the_n_step_return() -> None:
    for seed in range(5):
        unroll = random_unroll(seed)
        unroll["log_rhos"][:] = 0.0
        output = vtrace(**unroll)
        length = len(unroll.pop("log_rhos"))
        returns = losses.n_step_returns(**unroll, n=length)
        np.testing.assert_allclose(output.targets, returns, rtol=1e-5, atol=1e-5)
        errors = np.where(unroll["first"], 0.0, returns - unroll["values"][:-1])
        np.testing.assert_allclose(output.advantages, errors, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last_discount", [0.0, GAMMA], ids=["terminated", "truncated"])
def test_nothing_of_the_next_episode_reaches_the_last_one(last_discount: float) -> None:
    cut = 5  # Timestep 5 is the last of the first episode, timestep 6 the first of the second.
    unroll = random_unroll(0)
    unroll["first"][:] = False
    unroll["first"][cut] = True
    unroll["discounts"][cut - 1] = last_discount
    other = {name: array.copy() for name, array in unroll.items()}
    for name in ("log_rhos", "rewards", "discounts"):
        other[name][cut:] = random_unroll(1)[name][cut:]
    other["values"][cut + 1 :] += 100.0

    output, changed = vtrace(**unroll), vtrace(**other)
    np.testing.assert_array_equal(output.targets[: cut + 1], changed.targets[: cut + 1])
    np.testing.assert_array_equal(output.advantages[: cut + 1], changed.advantages[: cut + 1])
    assert not np.allclose(output.targets[cut + 1 :], changed.targets[cut + 1 :])
    assert not np.any(output.advantages[cut])


def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not() -> None:
    arguments = {
        "log_rhos": jnp.zeros((2, 2)),
        "rewards": jnp.full((2, 2), 3.0),
        "discounts": jnp.array([[0.0, GAMMA], [GAMMA, GAMMA]]),
        "values": jnp.array([[1.0, 1.0], [10.0, 10.0], [100.0, 100.0]]),
        "first": jnp.array([[False, False], [True, True]]),
    }
    output = vtrace(**arguments)
    np.testing.assert_allclose(output.targets, [[3.0, 3.0 + GAMMA * 10.0], [10.0, 10.0]])
    np.testing.assert_allclose(output.advantages, [[2.0, 2.0 + GAMMA * 10.0], [0.0, 0.0]])


def test_results_are_constants_and_finite_for_any_ratio() -> None:
    unroll = random_unroll(0)
    unroll["log_rhos"][:6] = 200.0
    unroll["log_rhos"][6:] = -200.0
    assert all(np.all(np.isfinite(array)) for array in vtrace(**unroll))

    def total(log_rhos: jax.Array, values: jax.Array) -> jax.Array:
        output = vtrace(**{**unroll, "log_rhos": log_rhos, "values": values})
        return jnp.sum(output.targets) + jnp.sum(output.advantages)

    gradients = jax.grad(total, argnums=(0, 1))(unroll["log_rhos"], unroll["values"])
    assert not any(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("name", ["log_rhos", "rewards", "discounts", "values"])
def test_an_array_of_another_length_is_refused(name: str) -> None:
    unroll = random_unroll(0)
    unroll[name] = unroll[name][1:]
    with pytest.raises(ValueError, match=f"{name} has shape .* expected"):
        vtrace(**unroll)
