"""The terms of the actor-critic loss, and the one reduction of every loss.

Each function gives one term for each element, ``[T, B]``, which is 0 where ``first``: the step
from the end of one episode to the start of the next has no action to learn from. They are those
of Espeholt et al. (2018), section 4.2, to be added with the weights of the configuration.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes


def policy_gradient_loss(
    log_probs: jax.Array, advantages: jax.Array, first: jax.Array
) -> jax.Array:
    """-log pi(a_t | x_t) times the advantage, which is held constant.

    Args:
      log_probs: ``[T, B]``, of the actions taken, under the policy being learned.
      advantages: ``[T, B]``, importance-weighted where off-policy.
      first: bool ``[T, B]``, timestep t+1 starts a new episode.
    """
    check_shapes(first.shape, log_probs=log_probs, advantages=advantages)
    return jnp.where(first, 0.0, -log_probs * jax.lax.stop_gradient(advantages))


def baseline_loss(values: jax.Array, targets: jax.Array, first: jax.Array) -> jax.Array:
    """Half the squared error of the values, with the targets held constant.

    Args:
      values: ``[T+1, B]``; the last one only bootstraps and has no term.
      targets: ``[T, B]``.
      first: bool ``[T, B]``, timestep t+1 starts a new episode.
    """
    check_shapes(first.shape, targets=targets)
    check_shapes((first.shape[0] + 1, *first.shape[1:]), values=values)
    errors = jax.lax.stop_gradient(targets) - values[:-1]
    return jnp.where(first, 0.0, 0.5 * jnp.square(errors))


def entropy_loss(entropies: jax.Array, first: jax.Array) -> jax.Array:
    """Minus the entropy of pi(. | x_t), so that minimizing the loss explores.

    Args:
      entropies: ``[T, B]``.
      first: bool ``[T, B]``, timestep t+1 starts a new episode.
    """
    check_shapes(first.shape, entropies=entropies)
    return jnp.where(first, 0.0, -entropies)


def mean_loss(terms: jax.Array) -> jax.Array:
    """The mean of ``[T, B]`` terms over all T * B elements, masked ones included.

    The denominator is constant so that the mean over devices of their means is the mean over the
    whole batch. Dividing by the number of unmasked elements of each device would weigh them by
    where the episodes happened to end, and the result would depend on the number of devices.
    """
    return jnp.mean(terms)
