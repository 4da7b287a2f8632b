"""The recurrent part of an LSTM over time (Hochreiter and Schmidhuber 1997; with forget gates).

The loop over time contains only what must be done step by step. The inputs' contribution to the
gates is computed before it, for all steps in one matrix product. The gradient of the recurrent
kernel is computed after it, in one product too: differentiating the loop would add up a gradient
of several megabytes in every step.
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
    """Return the hidden states of all steps, and the last state.

    Args:
      gates: float32 ``[T, B, 4 H]``, the contribution of inputs and biases to the input gate, the
        forget gate, the candidate and the output gate, in this order, before their activations.
      kernel: ``[H, 4 H]``, from the hidden state to the gates. Products are computed in its dtype.
      first: bool ``[T, B]``, whether the state is zeroed before this step.
      state: the state before the first step.

    Returns:
      Hidden states, float32 ``[T, B, H]``, and the state after the last step.
    """
    return _forward(gates, kernel, first, state)[0]


def _forward(
    gates: Array, kernel: Array, first: Array, state: LSTMState
) -> tuple[tuple[Array, LSTMState], Any]:
    # The activations are not kept for the backward pass: from the gates they are quickly computed.
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
    # Here `gates` are complete: with the contribution of the hidden state.
    gates, kernel, first, state, cells, hiddens = residuals
    d_hiddens, d_last = cotangents
    # The state before each step is the one after the step before.
    before = jax.tree.map(
        lambda start, steps: jnp.concatenate([start[None], steps[:-1]]), state, (cells, hiddens)
    )
    cells_before, hiddens_before = _kept(first, before)

    def step(d_state: LSTMState, inputs: Any) -> tuple[LSTMState, Array]:
        d_output, gates, cell, cell_before, first = inputs
        add, keep, candidate, show = _activations(gates)
        shown = jnp.tanh(cell)
        # A hidden state is both an output and an input of the next step.
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
        # Where the state was zeroed, no gradient passes to the step before.
        return _kept(first, (d_cell * keep, _product(d_gates, kernel.T))), d_gates

    d_state, d_gates = lax.scan(
        step, d_last, (d_hiddens, gates, cells, cells_before, first), reverse=True
    )
    size = kernel.shape[0]
    d_kernel = _product(hiddens_before.reshape(-1, size).T, d_gates.reshape(-1, 4 * size))
    # JAX requires cotangents of bools and integers to have its dtype float0.
    no_gradient = np.zeros(first.shape, jax.dtypes.float0)
    return d_gates, d_kernel.astype(kernel.dtype), no_gradient, d_state


lstm.defvjp(_forward, _backward)


def _activations(gates: Array) -> tuple[Array, Array, Array, Array]:
    add, keep, candidate, show = jnp.split(gates, 4, axis=-1)
    return jax.nn.sigmoid(add), jax.nn.sigmoid(keep), jnp.tanh(candidate), jax.nn.sigmoid(show)


def _kept(first: Array, state: LSTMState) -> LSTMState:
    """Return ``state`` with zeros where ``first``."""
    cell, hidden = (jnp.where(first[..., None], 0.0, leaf) for leaf in state)
    return cell, hidden


def _product(x: Array, kernel: Array) -> Array:
    """Return x @ kernel: factors in the kernel's dtype, sums in float32."""
    return jnp.matmul(x.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)
