"""The terms of the actor-critic loss (Espeholt et al. 2018, section 4.2), and the mean of a loss.

Each term is ``[T, B]``, and 0 where ``first``: in the step from the end of one episode to the start
of the next, the environment ignored the action. The caller adds the terms with weights of its own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes


def policy_gradient_loss(
    log_probs: jax.Array, advantages: jax.Array, first: jax.Array
) -> jax.Array:
    """Return -log pi(a_t | x_t) times the advantage, ``[T, B]``.

    Args:
      log_probs: ``[T, B]``, log pi(a_t | x_t) under the policy that learns.
      advantages: ``[T, B]``, with importance weights if off-policy. They get no gradient.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, log_probs=log_probs, advantages=advantages)
    return jnp.where(first, 0.0, -log_probs * jax.lax.stop_gradient(advantages))


def baseline_loss(values: jax.Array, targets: jax.Array, first: jax.Array) -> jax.Array:
    """Return half the squared error of the values, ``[T, B]``.

    Args:
      values: ``[T+1, B]``. The last one is not learned here, since it has no target.
      targets: ``[T, B]``. They get no gradient.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, targets=targets)
    check_shapes((first.shape[0] + 1, *first.shape[1:]), values=values)
    errors = jax.lax.stop_gradient(targets) - values[:-1]
    return jnp.where(first, 0.0, 0.5 * jnp.square(errors))


def entropy_loss(entropies: jax.Array, first: jax.Array) -> jax.Array:
    """Return minus the entropy of pi(. | x_t), ``[T, B]``: a lower loss is a more random policy.

    Args:
      entropies: ``[T, B]``, in nats.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, entropies=entropies)
    return jnp.where(first, 0.0, -entropies)


def mean_loss(terms: jax.Array) -> jax.Array:
    """Return the mean of terms ``[T, B]`` over all T * B elements, including masked ones."""
    # With a constant denominator, the mean over devices of their means is that of the whole batch.
    # If each device divided by its number of unmasked elements, the result would depend on how many
    # devices there are, and elements would count more where more episodes happened to end.
    return jnp.mean(terms)
