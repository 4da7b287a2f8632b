"""The recursion that all returns with traces share."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def discounted_sums(terms: jax.Array, factors: jax.Array) -> jax.Array:
    """Return y_t = terms_t + factors_t y_{t+1}, with y_T = 0, ``[T, B]``."""

    def step(later: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        term, factor = now
        total = term + factor * later
        return total, total

    _, sums = jax.lax.scan(step, jnp.zeros_like(terms[0]), (terms, factors), reverse=True)
    return sums
