"""Rewards as losses see them."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def clip_rewards(rewards: jax.Array, limit: float | None) -> jax.Array:
    """Rewards within +- ``limit``; as they are where it is None."""
    return rewards if limit is None else jnp.clip(rewards, -limit, limit)
