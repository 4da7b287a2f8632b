"""A rectified linear unit that is fast on every platform, including CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def relu(x: jax.Array) -> jax.Array:
    """Return max(x, 0), and NaN where x is NaN; the gradient at 0 is 0.

    On CPU, XLA's own maximum takes more instructions, because of NaN, than this comparison, which
    is False for NaN.
    """
    return jnp.where(x <= 0, 0, x)
