"""Priorities of replayed sequences and the weights that undo their bias.

Kapturowski et al. (2019), section 2.3, and Schaul et al. (2016), "Prioritized Experience
Replay", section 3.4.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes


def sequence_priorities(td_errors: jax.Array, first: jax.Array, eta: float = 0.9) -> jax.Array:
    """eta max_t |delta_t| + (1 - eta) mean_t |delta_t| of each sequence, ``[B]``.

    The maximum and the mean are over the steps that are not ``first``; 0 where there is none.

    Args:
      td_errors: ``[T, B]``, delta_t.
      first: bool ``[T, B]``, timestep t+1 starts a new episode.
      eta: weight of the maximum, between 0 and 1.
    """
    check_shapes(first.shape, td_errors=td_errors)
    errors = jnp.where(first, 0.0, jnp.abs(td_errors))
    valid_steps = jnp.maximum(1, jnp.sum(~first, axis=0)).astype(errors.dtype)
    return eta * jnp.max(errors, axis=0) + (1.0 - eta) * jnp.sum(errors, axis=0) / valid_steps


def importance_weights(probabilities: Any, size: Any, beta: float) -> Any:
    """(N P(i))^-beta, elementwise; 1 everywhere for uniform sampling.

    Args:
      probabilities: ``[B]``, P(i) > 0, with which each sequence was drawn.
      size: N, the number of sequences in the replay it was drawn from.
      beta: 0 for no correction to 1 for a full one.
    """
    return (size * probabilities) ** -beta


def normalize_importance_weights(weights: jax.Array, max_weight: jax.Array) -> jax.Array:
    """``weights`` ``[B]`` divided by ``max_weight`` ``[]``, so that they only scale updates down.

    The maximum is given because it must be that of the whole batch: with that of each device, the
    update would depend on how the batch was split.
    """
    return weights / max_weight
