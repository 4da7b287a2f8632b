"""V-trace: off-policy corrected value targets and policy gradient advantages.

Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures".
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sebulba.losses._shapes import check_shapes
from sebulba.losses._sums import discounted_sums


class VTraceOutput(NamedTuple):
    """What the losses take as constants: no gradient flows through it.

    Attributes:
      targets: ``[T, B]``, the V-trace targets v_t of the values of timesteps 0, ..., T-1. Where
        ``first``, the target is the value itself.
      advantages: ``[T, B]``, the factor of the gradient of log pi(a_t | x_t); 0 where ``first``.
    """

    targets: jax.Array
    advantages: jax.Array


def vtrace(
    log_rhos: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    values: jax.Array,
    first: jax.Array,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTraceOutput:
    """Return the V-trace targets (eq. 1) and advantages (section 4.2) of one unroll.

    Args:
      log_rhos: ``[T, B]``, log pi(a_t | x_t) - log mu(a_t | x_t).
      rewards: ``[T, B]``, r_{t+1}, the reward for a_t.
      discounts: ``[T, B]``, gamma times the discount of timestep t+1 (0 on termination).
      values: ``[T+1, B]``, V(x_t). The last one bootstraps.
      first: bool ``[T, B]``, whether timestep t+1 starts a new episode. The transition to it is not
        part of any episode: an episode bootstraps from the value of its own last timestep.
      lambda_: factor of c_t (remark 2); 1 in the paper's experiments.
      clip_rho: rho-bar, which determines the policy whose value function is learned.
      clip_c: c-bar, at most ``clip_rho``, which determines speed of convergence and variance.
      clip_pg_rho: the same as ``clip_rho``, for the ratio in the policy gradient.

    Raises:
      ValueError: an argument has another shape.
    """
    check_shapes(first.shape, log_rhos=log_rhos, rewards=rewards, discounts=discounts)
    check_shapes((first.shape[0] + 1, *first.shape[1:]), values=values)
    log_rhos, rewards, discounts, values = jax.lax.stop_gradient(
        (log_rhos, rewards, discounts, values)
    )
    # With rho_t = 0 where `first`, delta_t and c_t are 0 and v_t = V(x_t). So the step before it,
    # the last of the episode, bootstraps from the value of the final observation.
    rhos = jnp.where(first, 0.0, jnp.exp(log_rhos))
    discounts = jnp.where(first, 0.0, discounts)
    cs = lambda_ * jnp.minimum(clip_c, rhos)
    deltas = jnp.minimum(clip_rho, rhos) * (rewards + discounts * values[1:] - values[:-1])

    # The recursion (remark 1) is on v_t - V(x_t), which is 0 after the unroll.
    targets = values[:-1] + discounted_sums(deltas, discounts * cs)
    # The advantage uses v_{t+1}, not V(x_{t+1}) as delta_t does; the last one is the bootstrap.
    next_targets = jnp.concatenate([targets[1:], values[-1:]])
    errors = rewards + discounts * next_targets - values[:-1]
    return VTraceOutput(targets, jnp.minimum(clip_pg_rho, rhos) * errors)
