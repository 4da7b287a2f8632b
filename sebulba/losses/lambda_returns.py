"""Lambda returns, the targets of PQN, and what they exceed values by: the advantages of PPO.

Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage
Estimation"; Gallici et al. (2025), "Simplifying Deep Temporal Difference Learning", section 4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes
from sebulba.losses._sums import discounted_sums


def generalized_advantages(
    values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    first: jax.Array,
    lambda_: float,
) -> jax.Array:
    """Return the generalized advantage estimates (Schulman et al. 2016, eq. 16), ``[T, B]``.

    A_t = delta_t + gamma lambda A_{t+1}, with delta_t = r_{t+1} + gamma V(x_{t+1}) - V(x_t). They
    get no gradient.

    Args:
      values: ``[T+1, B]``, V(x_t). The last one bootstraps.
      rewards: ``[T, B]``, r_{t+1}, the reward for a_t.
      discounts: ``[T, B]``, gamma times the discount of timestep t+1 (0 on termination).
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode. The transition to it is not
        part of any episode: its advantage is 0, and the step before it, the last of the episode,
        bootstraps from the value of the final observation.
      lambda_: from 0, for the error of one step, to 1, for that of the whole return.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, rewards=rewards, discounts=discounts)
    check_shapes((first.shape[0] + 1, *first.shape[1:]), values=values)
    values = jax.lax.stop_gradient(values)
    deltas = jnp.where(first, 0.0, rewards + discounts * values[1:] - values[:-1])
    return discounted_sums(deltas, jnp.where(first, 0.0, lambda_ * discounts))


def lambda_returns(
    values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    first: jax.Array,
    lambda_: float,
) -> jax.Array:
    """Return R_t = r_{t+1} + gamma (lambda R_{t+1} + (1 - lambda) V(x_{t+1})), ``[T, B]``.

    With V(x) = max_a Q(x, a) these are the targets of PQN (Gallici et al. 2025, section 4). The
    return of the last timestep of an episode or of the unroll is its value. Arguments and errors
    are those of ``generalized_advantages``. Returns have no meaning where ``first``.
    """
    # R_t - V(x_t) has the recursion of the advantages.
    advantages = generalized_advantages(values, rewards, discounts, first, lambda_)
    return jax.lax.stop_gradient(values[:-1]) + advantages
