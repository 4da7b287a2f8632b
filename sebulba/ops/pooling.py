"""Max pooling that is fast on every platform, CPU included.

On accelerators it is XLA's own operation, whose gradient is slow on CPU: there both are maxima and
sums of shifted slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sebulba.ops.convolution import Pads, Pair, pads_of, pair_of

Array = jax.Array


def max_pool(
    x: Array,
    window: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]] = "SAME",
) -> Array:
    """Maximum over windows of images [B, H, W, C], as `lax.reduce_window` gives it.

    Of equal values in a window, the first in row-major order receives the gradient. Arguments are
    as for `conv2d`; window is one size for both axes, or (height, width).
    """
    if x.ndim != 4:
        raise ValueError(f"x {x.shape} must be images [B, H, W, C]; reshape it first")
    size, steps = pair_of(window), pair_of(strides)
    return _max_pool(size, steps, pads_of(x.shape[1:3], size, steps, padding), x)


# As in `convolution`, differentiation never sees the choice of platform.


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _max_pool(window: Pair, strides: Pair, pads: Pads, x: Array) -> Array:
    cpu = partial(_cpu_max_pool, window, strides, pads)
    native = partial(_native_max_pool, window, strides, pads)
    y: Array = lax.platform_dependent(x, cpu=cpu, default=native)
    return y


def _max_pool_bwd(window: Pair, strides: Pair, pads: Pads, x: Array, dy: Array) -> tuple[Array]:
    cpu = partial(_cpu_max_pool_dx, window, strides, pads)
    native = partial(_native_max_pool, window, strides, pads)
    dx = lax.platform_dependent(
        *(x, dy), cpu=cpu, default=lambda x, dy: jax.vjp(native, x)[1](dy)[0]
    )
    return (dx,)


_max_pool.defvjp(lambda w, s, p, x: (_max_pool(w, s, p, x), x), _max_pool_bwd)


def _native_max_pool(window: Pair, strides: Pair, pads: Pads, x: Array) -> Array:
    padding = ((0, 0), *pads, (0, 0))
    y: Array = lax.reduce_window(x, -jnp.inf, lax.max, (1, *window, 1), (1, *strides, 1), padding)
    return y


def _cpu_max_pool(window: Pair, strides: Pair, pads: Pads, x: Array) -> Array:
    batch, *size, channels = x.shape
    counts = [
        (n + low + high - k) // s + 1
        for n, (low, high), k, s in zip(size, pads, window, strides, strict=True)
    ]
    lowest = jnp.array(-jnp.inf, x.dtype)
    y = jnp.full((batch, *counts, channels), lowest)
    for place in np.ndindex(*window):
        axes = [
            _pixels(n, k - low, s, count)
            for n, k, (low, _), s, count in zip(size, place, pads, strides, counts, strict=True)
        ]
        if all(first < end for _, first, end in axes):
            pixels = x[:, *(inside for inside, _, _ in axes)]
            around = [(f, count - e, 0) for (_, f, e), count in zip(axes, counts, strict=True)]
            # To pad these, and not x, takes two fifths of the time; for the gradient, 1.5 times.
            y = lax.max(y, lax.pad(pixels, lowest, ((0, 0, 0), *around, (0, 0, 0))))
    return y


def _pixels(size: int, start: int, stride: int, windows: int) -> tuple[slice, int, int]:
    """Of one place of the windows along an axis: its pixels, and the first window in which it is
    one and the first after these in which it is padding.
    """
    first, end = max(0, -(start // stride)), min(windows, (size - 1 - start) // stride + 1)
    return slice(start + first * stride, start + (end - 1) * stride + 1, stride), first, end


def _cpu_max_pool_dx(window: Pair, strides: Pair, pads: Pads, x: Array, dy: Array) -> Array:
    batch, rows, columns, channels = dy.shape
    (height, width), (down, right) = window, strides
    first = _first_of_maxima(window, strides, pads, x)

    # Pixels at the same place in their block of `strides` pixels are in the same windows: those
    # that begin in the block itself, and so many blocks above and to the left of it.
    above, left = (height - 1) // down, (width - 1) // right
    border = (0, 0), (above, above), (left, left), (0, 0)
    # Without the barrier the search, and what dy comes from, would be repeated for each of them.
    first, dy = lax.optimization_barrier((jnp.pad(first, border), jnp.pad(dy, border)))
    rows, columns = rows + above, columns + left
    i = lax.broadcasted_iota(jnp.int32, (down, 1, right, 1), 0)
    j = lax.broadcasted_iota(jnp.int32, (down, 1, right, 1), 2)
    dx = jnp.zeros((batch, rows, down, columns, right, channels), dy.dtype)
    for m, n in np.ndindex(above + 1, left + 1):
        there = slice(above - m, above - m + rows), None, slice(left - n, left - n + columns), None
        place = (i + m * down) * width + j + n * right
        inside = (i + m * down < height) & (j + n * right < width)
        dx += jnp.where(inside & (first[:, *there] == place), dy[:, *there], 0)
    dx = dx.reshape(batch, rows * down, columns * right, channels)
    crop = [
        (-low, n + low - have, 0)
        for n, (low, _), have in zip(x.shape[1:3], pads, dx.shape[1:3], strict=True)
    ]
    return lax.pad(dx, jnp.zeros((), dx.dtype), ((0, 0, 0), *crop, (0, 0, 0)))


def _first_of_maxima(window: Pair, strides: Pair, pads: Pads, x: Array) -> Array:
    """In each window, the position of its first maximum in row-major order."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    last = [(n - k) // s * s for n, k, s in zip(padded.shape[1:3], window, strides, strict=True)]
    down, right = strides
    pixels = [
        padded[:, i : i + last[0] + 1 : down, j : j + last[1] + 1 : right]
        for i, j in np.ndindex(*window)
    ]
    best, first = pixels[0], jnp.zeros(pixels[0].shape, jnp.int32)
    for n, pixel in enumerate(pixels[1:], 1):
        first = jnp.where(pixel > best, n, first)
        best = lax.max(best, pixel)
    return first
