"""Priorities of replayed sequences, and the importance weights that correct for them.

Kapturowski et al. (2019), section 2.3, and Schaul et al. (2016), "Prioritized Experience
Replay", section 3.4.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes


def sequence_priorities(td_errors: jax.Array, first: jax.Array, eta: float = 0.9) -> jax.Array:
    """Return ``eta max_t |delta_t| + (1 - eta) mean_t |delta_t|`` of each sequence, ``[B]``.

    Maximum and mean are over the steps that are not ``first``. A sequence without any has 0.

    Args:
      td_errors: ``[T, B]``, delta_t.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.
      eta: weight of the maximum, from 0 to 1.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, td_errors=td_errors)
    # Absolute errors are never below 0, so zeros in place of masked ones change no maximum or sum.
    errors = jnp.where(first, 0.0, jnp.abs(td_errors))
    valid_steps = jnp.maximum(1, jnp.sum(~first, axis=0)).astype(errors.dtype)
    return eta * jnp.max(errors, axis=0) + (1.0 - eta) * jnp.sum(errors, axis=0) / valid_steps


def importance_weights(probabilities: Any, size: Any, beta: float) -> Any:
    """Return (N P(i))^-beta elementwise, which is 1 for uniform sampling.

    Args:
      probabilities: ``[B]``, the probability P(i) > 0 with which each sequence was drawn.
      size: N, the number of sequences in the replay that they were drawn from.
      beta: from 0 for no correction to 1 for a full one.

    Returns:
      Weights ``[B]``; NumPy or JAX arrays, as the arguments.
    """
    return (size * probabilities) ** -beta


def normalize_importance_weights(weights: jax.Array, max_weight: jax.Array) -> jax.Array:
    """Return ``weights`` ``[B]`` divided by ``max_weight`` ``[]``, so that none is above 1.

    ``max_weight`` must be the maximum of the whole batch. With the maximum of each device, the
    update would depend on how the batch is divided.
    """
    return weights / max_weight
