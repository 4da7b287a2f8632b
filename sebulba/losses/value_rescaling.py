"""Invertible value rescaling, with which a network can learn returns of any size.

Pohlen et al. (2018), "Observe and Look Further", proposition A.2; used by R2D2, Kapturowski et
al. (2019).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

EPSILON = 1e-3
"""Slope of h far from 0. It is above 0, so that the inverse of h is Lipschitz continuous."""


def rescale(x: jax.Array, epsilon: float = EPSILON) -> jax.Array:
    """Return ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x``, elementwise."""
    # Near 0, sqrt(|x| + 1) - 1 is the difference of nearly equal numbers, and loses its digits.
    # So it is multiplied by its conjugate: (sqrt(|x| + 1) - 1) (sqrt(|x| + 1) + 1) = |x|.
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + epsilon * x


def inverse_rescale(x: jax.Array, epsilon: float = EPSILON) -> jax.Array:
    """Return the y with h(y) = x, elementwise."""
    # With w = sqrt(|y| + 1) - 1, so that |y| = w (w + 2), h(y) = x becomes the quadratic equation
    # epsilon w^2 + (1 + 2 epsilon) w = |x|. Its positive root, with the sign of x, is computed
    # below, in the form that does not subtract nearly equal numbers near 0.
    b = 1.0 + 2.0 * epsilon
    w = 2.0 * x / (b + jnp.sqrt(b * b + 4.0 * epsilon * jnp.abs(x)))
    return w * (jnp.abs(w) + 2.0)
