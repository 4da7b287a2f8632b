"""n-step double Q-learning with value rescaling, the loss of R2D2.

Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement Learning",
section 2.3; double Q-learning is van Hasselt et al. (2016).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes
from sebulba.losses.value_rescaling import inverse_rescale, rescale


class NStepQOutput(NamedTuple):
    """One element for each action, ``[T, B]``.

    Attributes:
      loss: half the squared TD error; the only field with a gradient. 0 where ``first``.
      td_errors: target minus Q(x_t, a_t), on the rescaled axis. 0 where ``first``.
      targets: on the rescaled axis; not meaningful where ``first``.
    """

    loss: jax.Array
    td_errors: jax.Array
    targets: jax.Array


def n_step_returns(
    values: jax.Array, rewards: jax.Array, discounts: jax.Array, first: jax.Array, n: int
) -> jax.Array:
    """Sum of up to n discounted rewards plus the discounted value of where they end, ``[T, B]``.

    The return of time t ends at t + n, or before at the last timestep of its episode or of the
    unroll, and bootstraps from the value there (which a discount of 0 removes on termination).

    Args:
      values: ``[T+1, B]``, the value of each timestep.
      rewards: ``[T, B]``, r_{t+1}, received for a_t.
      discounts: ``[T, B]``, gamma times the discount of timestep t+1 (0 on termination).
      first: bool ``[T, B]``, timestep t+1 starts a new episode.
      n: steps, at least 1.

    Raises:
      ValueError: an argument has another shape, or n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}, but a return needs at least 1 step: pass n >= 1.")
    check_shapes(first.shape, rewards=rewards, discounts=discounts)
    check_shapes((first.shape[0] + 1, *first.shape[1:]), values=values)
    # After k rounds `returns` holds the k-step returns of all T + 1 timesteps. Those of timesteps
    # with no next one (the last of its episode, the last of the unroll) stay at the value.
    returns = values
    for _ in range(n):
        longer = jnp.where(first, values[:-1], rewards + discounts * returns[1:])
        returns = jnp.concatenate([longer, values[-1:]])
    return returns[:-1]


def n_step_double_q(
    q_online: jax.Array,
    q_target: jax.Array,
    actions: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    first: jax.Array,
    *,
    n: int = 5,
) -> NStepQOutput:
    """TD errors of Q(x_t, a_t) against h(n-step return of h^-1(Q_target(x, argmax_a Q_online))).

    Args:
      q_online: ``[T+1, B, A]``, of the network being learned; it also chooses the actions.
      q_target: ``[T+1, B, A]``, of the target network, which judges them.
      actions: int ``[T, B]``, a_t.
      rewards: ``[T, B]``, r_{t+1}, received for a_t.
      discounts: ``[T, B]``, gamma times the discount of timestep t+1 (0 on termination).
      first: bool ``[T, B]``, timestep t+1 starts a new episode.
      n: steps, at least 1.

    Raises:
      ValueError: an argument has another shape, or n is less than 1.
    """
    check_shapes(first.shape, actions=actions)
    check_shapes(q_online.shape, q_target=q_target)
    values = inverse_rescale(_select(q_target, jnp.argmax(q_online, axis=-1)))
    targets = rescale(n_step_returns(values, rewards, discounts, first, n))
    targets = jax.lax.stop_gradient(targets)
    errors = jnp.where(first, 0.0, targets - _select(q_online[:-1], actions))
    return NStepQOutput(0.5 * jnp.square(errors), jax.lax.stop_gradient(errors), targets)


def _select(q_values: jax.Array, actions: jax.Array) -> jax.Array:
    """Q(x, a): ``[T, B, A]`` at ``[T, B]``."""
    return jnp.take_along_axis(q_values, actions[..., None], axis=-1)[..., 0]
