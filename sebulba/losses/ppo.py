"""The clipped losses of PPO.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms"; Huang et al. (2022), "The 37
Implementation Details of Proximal Policy Optimization".

Each term is ``[T, B]``, and 0 where ``first``: in the step from the end of one episode to the start
of the next, the environment ignored the action.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes

_MOST_LOG_RHO = 20.0
"""A ratio of 5e8 is as far from its limits as an infinite one."""


class ClippedPolicyOutput(NamedTuple):
    """One element for each action, ``[T, B]``, and 0 where ``first``.

    Attributes:
      loss: the only field with a gradient.
      approx_kl: rho - 1 - log rho, whose mean estimates KL(mu || pi), from the policy that acted to
        the one that learns (Schulman 2020, "Approximating KL Divergence", k3).
      is_clipped: 1 where rho is outside of its limits.
    """

    loss: jax.Array
    approx_kl: jax.Array
    is_clipped: jax.Array


def clipped_policy_loss(
    log_probs: jax.Array,
    behavior_log_probs: jax.Array,
    advantages: jax.Array,
    first: jax.Array,
    clip: float,
) -> ClippedPolicyOutput:
    """Return -min(rho_t A_t, clip(rho_t, 1 - clip, 1 + clip) A_t) (eq. 7), with rho_t = pi / mu.

    Args:
      log_probs: ``[T, B]``, log pi(a_t | x_t) under the policy that learns.
      behavior_log_probs: ``[T, B]``, log mu(a_t | x_t) under the policy that acted.
      advantages: ``[T, B]``, A_t. They get no gradient.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.
      clip: epsilon of the paper.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(
        first.shape,
        log_probs=log_probs,
        behavior_log_probs=behavior_log_probs,
        advantages=advantages,
    )
    # Before the exponential, so that no ratio of a masked step overflows, and none of the others,
    # whose gradient would then be NaN, even where the clipped ratio is the smaller one.
    log_rhos = jnp.where(first, 0.0, log_probs - behavior_log_probs)
    log_rhos = jnp.minimum(log_rhos, _MOST_LOG_RHO)
    advantages = jnp.where(first, 0.0, jax.lax.stop_gradient(advantages))
    rhos = jnp.exp(log_rhos)
    loss = -jnp.minimum(rhos * advantages, jnp.clip(rhos, 1 - clip, 1 + clip) * advantages)
    constant = jax.lax.stop_gradient(rhos)
    is_clipped = (jnp.abs(constant - 1) > clip).astype(loss.dtype)
    return ClippedPolicyOutput(loss, constant - 1 - jax.lax.stop_gradient(log_rhos), is_clipped)


def clipped_value_loss(
    values: jax.Array,
    values_before: jax.Array,
    targets: jax.Array,
    first: jax.Array,
    clip: float | None,
) -> jax.Array:
    """Return half the squared error of the values, ``[T, B]`` (Huang et al. 2022, detail 9).

    Where a value has moved by more than ``clip``, it is the larger of its error and of the error of
    the value moved by ``clip``.

    Args:
      values: ``[T, B]``, of the timesteps at which the actions were chosen.
      values_before: ``[T, B]``, the same before the first epoch. They get no gradient.
      targets: ``[T, B]``. They get no gradient.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode.
      clip: None for no limit.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, values=values, values_before=values_before, targets=targets)
    values_before, targets = jax.lax.stop_gradient((values_before, targets))
    errors = jnp.square(values - targets)
    if clip is not None:
        moved = values_before + jnp.clip(values - values_before, -clip, clip)
        errors = jnp.maximum(errors, jnp.square(moved - targets))
    return jnp.where(first, 0.0, 0.5 * errors)
