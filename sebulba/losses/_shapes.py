"""A check that all losses share, since ``[B]`` and ``[T, B]`` would broadcast without an error."""

from __future__ import annotations

import jax


def check_shapes(expected: tuple[int, ...], **arrays: jax.Array) -> None:
    """Raise ``ValueError`` for the first of ``arrays`` whose shape is not ``expected``."""
    for name, array in arrays.items():
        if array.shape != expected:
            raise ValueError(
                f"{name} has shape {array.shape}, expected {expected}. Arrays of the T actions are"
                " [T, B], arrays of the T + 1 timesteps [T + 1, B]: slice timestep fields [1:] and"
                " keep the value of the last timestep, which is the bootstrap."
            )
