"""Rewards as the losses take them."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def clip_rewards(rewards: jax.Array, limit: float | None) -> jax.Array:
    """Clip rewards to [-limit, limit], or return them as they are if ``limit`` is None."""
    return rewards if limit is None else jnp.clip(rewards, -limit, limit)
