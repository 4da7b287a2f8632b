"""The recurrent part of an LSTM over time (Hochreiter and Schmidhuber 1997; with forget gates).

Only what must be done step by step is in the loop. The inputs' share of the gates comes from
outside, in one product over all steps; and so does the gradient of the recurrent kernel, which
differentiation of the loop would add up step by step, at several megabytes each.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
LSTMState = tuple[Array, Array]
"""Cell and hidden state, float32 ``[B, H]``."""


@jax.custom_vjp
def lstm(gates: Array, kernel: Array, first: Array, state: LSTMState) -> tuple[Array, LSTMState]:
    """Hidden states of every step, and the last state.

    Args:
      gates: float32 ``[T, B, 4 H]``, what inputs and biases add to the input gate, the forget
        gate, the candidate and the output gate, in this order.
      kernel: ``[H, 4 H]``, from the hidden state to the gates; products are in its dtype.
      first: bool ``[T, B]``, the state is zeroed before this step.
      state: before the first step.

    Returns:
      float32 ``[T, B, H]``, and the state after the last step.
    """
    return _forward(gates, kernel, first, state)[0]


def _forward(
    gates: Array, kernel: Array, first: Array, state: LSTMState
) -> tuple[tuple[Array, LSTMState], Any]:
    def step(state: LSTMState, inputs: tuple[Array, Array]) -> tuple[LSTMState, Any]:
        gates, first = inputs
        cell, hidden = _kept(first, state)
        gates = gates + _product(hidden, kernel)
        add, keep, candidate, show = _activations(gates)
        cell = keep * cell + add * candidate
        hidden = show * jnp.tanh(cell)
        return (cell, hidden), (gates, cell, hidden)

    last, (gates, cells, hiddens) = lax.scan(step, state, (gates, first))
    return (hiddens, last), (gates, kernel, first, state, cells, hiddens)


def _backward(residuals: Any, cotangents: tuple[Array, LSTMState]) -> tuple[Any, ...]:
    gates, kernel, first, state, cells, hiddens = residuals
    d_hiddens, d_last = cotangents
    before = jax.tree.map(
        lambda start, steps: jnp.concatenate([start[None], steps[:-1]]), state, (cells, hiddens)
    )
    cells_before, hiddens_before = _kept(first, before)

    def step(d_state: LSTMState, inputs: Any) -> tuple[LSTMState, Array]:
        d_output, gates, cell, cell_before, first = inputs
        add, keep, candidate, show = _activations(gates)
        shown = jnp.tanh(cell)
        d_hidden = d_state[1] + d_output
        d_cell = d_state[0] + d_hidden * show * (1 - shown**2)
        d_gates = jnp.concatenate(
            [
                d_cell * candidate * add * (1 - add),
                d_cell * cell_before * keep * (1 - keep),
                d_cell * add * (1 - candidate**2),
                d_hidden * shown * show * (1 - show),
            ],
            axis=-1,
        )
        return _kept(first, (d_cell * keep, _product(d_gates, kernel.T))), d_gates

    d_state, d_gates = lax.scan(
        step, d_last, (d_hiddens, gates, cells, cells_before, first), reverse=True
    )
    size = kernel.shape[0]
    d_kernel = _product(hiddens_before.reshape(-1, size).T, d_gates.reshape(-1, 4 * size))
    no_gradient = np.zeros(first.shape, jax.dtypes.float0)
    return d_gates, d_kernel.astype(kernel.dtype), no_gradient, d_state


lstm.defvjp(_forward, _backward)


def _activations(gates: Array) -> tuple[Array, Array, Array, Array]:
    add, keep, candidate, show = jnp.split(gates, 4, axis=-1)
    return jax.nn.sigmoid(add), jax.nn.sigmoid(keep), jnp.tanh(candidate), jax.nn.sigmoid(show)


def _kept(first: Array, state: LSTMState) -> LSTMState:
    cell, hidden = (jnp.where(first[..., None], 0.0, leaf) for leaf in state)
    return cell, hidden


def _product(x: Array, kernel: Array) -> Array:
    """In the kernel's dtype, added up in float32."""
    return jnp.matmul(x.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)
