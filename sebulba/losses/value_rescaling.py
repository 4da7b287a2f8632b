"""Invertible value rescaling, which lets one network learn returns of any size.

Pohlen et al. (2018), "Observe and Look Further", proposition A.2; used by R2D2, Kapturowski et
al. (2019). The textbook forms of both functions subtract nearly equal numbers around 0; these
are the same functions with numerator and denominator multiplied by the conjugate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

EPSILON = 1e-3
"""Slope of h far from 0, which keeps its inverse Lipschitz continuous."""


def rescale(x: jax.Array, epsilon: float = EPSILON) -> jax.Array:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, elementwise."""
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + epsilon * x


def inverse_rescale(x: jax.Array, epsilon: float = EPSILON) -> jax.Array:
    """The y with h(y) = x, elementwise.

    With w = sqrt(|y| + 1) - 1, h(y) = x reads epsilon w^2 + (1 + 2 epsilon) w = |x|. Below, w is
    its positive root with the sign of x, and |y| = w (w + 2).
    """
    b = 1.0 + 2.0 * epsilon
    w = 2.0 * x / (b + jnp.sqrt(b * b + 4.0 * epsilon * jnp.abs(x)))
    return w * (jnp.abs(w) + 2.0)
