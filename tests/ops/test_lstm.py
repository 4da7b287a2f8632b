"""The LSTM's loop against flax's cell, step by step."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.ops.lstm import lstm

T, B, H = 5, 3, 5
CELL = nn.OptimizedLSTMCell(H)
NAMES = "ifgo"


def inputs(seed: int = 0) -> tuple[Any, ...]:
    """Gates, kernel, first and state."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    first = jnp.asarray(rng.random((T, B)) < 0.3)
    return normal(T, B, 4 * H), normal(H, 4 * H), first, (normal(B, H), normal(B, H))


def by_flax(gates: Any, kernel: Any, first: Any, state: Any) -> Any:
    """The gates are the cell's inputs, through kernels that pass them on."""
    params = {
        f"i{name}": {"kernel": jnp.eye(4 * H)[:, k * H : (k + 1) * H]}
        for k, name in enumerate(NAMES)
    }
    for k, name in enumerate(NAMES):
        own = kernel[:, k * H : (k + 1) * H]
        params[f"h{name}"] = {"kernel": own, "bias": jnp.zeros(H)}
    outputs = []
    for t in range(T):
        state = jax.tree.map(lambda leaf, t=t: jnp.where(first[t][:, None], 0, leaf), state)
        state, output = CELL.apply({"params": params}, state, gates[t])
        outputs.append(output)
    return jnp.stack(outputs), state


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b
    )


def test_values_are_those_of_flax() -> None:
    close(lstm(*inputs()), jax.jit(by_flax)(*inputs()))


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_those_of_flax(seed: int) -> None:
    gates, kernel, first, state = inputs(seed)
    weights = jax.tree.map(
        lambda leaf: jnp.asarray(np.random.default_rng(9).normal(size=leaf.shape), jnp.float32),
        lstm(gates, kernel, first, state),
    )

    def loss(function: Any, gates: Any, kernel: Any, state: Any) -> Any:
        products = jax.tree.map(jnp.multiply, weights, function(gates, kernel, first, state))
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(products))

    gradient = jax.jit(jax.grad(loss, argnums=(1, 2, 3)), static_argnums=0)
    ours, theirs = (gradient(function, gates, kernel, state) for function in (lstm, by_flax))
    close(ours, theirs, 1e-4)
    assert all(float(jnp.abs(leaf).max()) > 0.1 for leaf in jax.tree.leaves(ours))


def test_nothing_passes_the_start_of_an_episode() -> None:
    gates, kernel, first, state = inputs()
    first = first.at[3].set(True)

    def later(gates: Any, state: Any) -> Any:
        return jnp.sum(lstm(gates, kernel, first, state)[0][3:])

    d_gates, d_state = jax.grad(later, argnums=(0, 1))(gates, state)
    assert not d_gates[:3].any() and d_gates[3:].any()
    assert not any(leaf.any() for leaf in d_state)


def test_products_in_bfloat16_keep_a_float32_state() -> None:
    gates, kernel, first, state = inputs()
    half = kernel.astype(jnp.bfloat16)
    outputs, last = lstm(gates, half, first, state)
    assert {leaf.dtype for leaf in jax.tree.leaves((outputs, last))} == {jnp.dtype("float32")}
    close(outputs, by_flax(gates, half.astype(jnp.float32), first, state)[0], 0.05)
    gradient = jax.grad(lambda kernel: jnp.sum(lstm(gates, kernel, first, state)[0]))(half)
    assert gradient.dtype == jnp.bfloat16
