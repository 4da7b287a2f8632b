"""relu: the same as JAX's own, and NaN stays NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.ops.relu import relu

NUMBERS = [-jnp.inf, -2.5, -0.0, 0.0, 1e-30, 3.0, jnp.inf]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_values_and_gradients_are_those_of_jax(dtype: jnp.dtype) -> None:
    x = jnp.array(NUMBERS, dtype)
    found, pull = jax.vjp(jax.jit(relu), x)
    expected, pull_expected = jax.vjp(jax.nn.relu, x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    (gradient,), (of_jax,) = pull(jnp.full_like(x, 2)), pull_expected(jnp.full_like(x, 2))
    np.testing.assert_array_equal(gradient, of_jax)


def test_nan_stays_nan() -> None:
    """So that a training that has diverged shows it."""
    assert jnp.isnan(jax.jit(relu)(jnp.float32(jnp.nan)))
