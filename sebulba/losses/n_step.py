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
    """One element for each action, ``[T, B]``. Targets and errors are rescaled by h.

    Attributes:
      loss: half the squared TD error, 0 where ``first``. The only field with a gradient.
      td_errors: target minus Q(x_t, a_t), 0 where ``first``.
      targets: the target of Q(x_t, a_t), without meaning where ``first``.
    """

    loss: jax.Array
    td_errors: jax.Array
    targets: jax.Array


def n_step_returns(
    values: jax.Array, rewards: jax.Array, discounts: jax.Array, first: jax.Array, n: int
) -> jax.Array:
    """Return the sum of up to n discounted rewards and a discounted value, ``[T, B]``.

    The return of time t ends at timestep t + n, or before it at the last timestep of the episode or
    the unroll. It bootstraps from the value there, which a discount of 0 removes on termination.

    Args:
      values: ``[T+1, B]``, the value of each timestep.
      rewards: ``[T, B]``, r_{t+1}, the reward for a_t.
      discounts: ``[T, B]``, gamma times the discount of timestep t+1 (0 on termination).
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.
      n: number of steps, at least 1.

    Raises:
      ValueError: an argument has another shape, or n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}, but a return needs at least 1 step: pass n >= 1.")
    check_shapes(first.shape, rewards=rewards, discounts=discounts)
    check_shapes((first.shape[0] + 1, *first.shape[1:]), values=values)
    # After k rounds, `returns` holds the k-step returns of all T + 1 timesteps. The last timestep
    # of an episode or of the unroll has no next one: its return stays the value.
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
    """Return the n-step double Q-learning loss and TD errors of a_t, with rescaled values.

    The target of Q(x_t, a_t) is h of the n-step return of the values
    h^-1(Q_target(x, argmax_a Q_online(x, a))), with h as in ``rescale``.

    Args:
      q_online: ``[T+1, B, A]``, of the network that learns; it also selects the greedy actions.
      q_target: ``[T+1, B, A]``, of the target network, which evaluates them.
      actions: int ``[T, B]``, a_t.
      rewards: ``[T, B]``, r_{t+1}, the reward for a_t.
      discounts: ``[T, B]``, gamma times the discount of timestep t+1 (0 on termination).
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.
      n: number of steps, at least 1.

    Raises:
      ValueError: an argument has another shape, or n is less than 1.
    """
    check_shapes(first.shape, actions=actions)
    check_shapes(q_online.shape, q_target=q_target)
    # Networks learn h(Q). Rewards can only be added to Q itself, so the sum is done there.
    values = inverse_rescale(_select(q_target, jnp.argmax(q_online, axis=-1)))
    targets = rescale(n_step_returns(values, rewards, discounts, first, n))
    targets = jax.lax.stop_gradient(targets)
    errors = jnp.where(first, 0.0, targets - _select(q_online[:-1], actions))
    return NStepQOutput(0.5 * jnp.square(errors), jax.lax.stop_gradient(errors), targets)


def _select(q_values: jax.Array, actions: jax.Array) -> jax.Array:
    """Return the Q values ``[T, B]`` of ``actions`` ``[T, B]`` from ``q_values`` ``[T, B, A]``."""
    return jnp.take_along_axis(q_values, actions[..., None], axis=-1)[..., 0]
