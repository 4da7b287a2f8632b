"""Strides and padding of windows that slide over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

Pair = tuple[int, int]
"""Vertical, horizontal."""
Pads = tuple[Pair, Pair]
"""(top, bottom), (left, right)."""


def pair_of(value: int | Sequence[int]) -> Pair:
    """One number for both axes, or two.

    Raises:
      ValueError: they are not positive integers, or not two.
    """
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{value} must be a positive integer, or two: (vertical, horizontal)")
    return pair[0], pair[1]


def pads_of(shape: Sequence[int], window: Sequence[int], strides: Pair, padding: Any) -> Pads:
    """Pixels of padding that "SAME", "VALID" or ((top, bottom), (left, right)) comes to."""
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(shape, window, strides, padding)
    (top, bottom), (left, right) = padding
    return (top, bottom), (left, right)
