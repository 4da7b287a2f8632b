"""Max pooling that is fast on every platform, including CPU.

On accelerators it is XLA's own operation. Its gradient is slow on CPU, so there pooling is computed
as the maximum of shifted slices of the images, and the gradient as the sum of shifted slices of dy.
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
    """Return the maximum over each window of images, as `lax.reduce_window` does.

    If values in a window are equal, the first in row-major order receives the gradient.

    Args:
      x: floats [B, H, W, C].
      window: one size for both axes, or (height, width).
      strides: one for both axes, or (vertical, horizontal).
      padding: "SAME", "VALID" or ((top, bottom), (left, right)).

    Returns:
      [B, OH, OW, C]. Differentiable in reverse mode.

    Raises:
      ValueError: `x` does not have four axes, or `window` or `strides` are not positive integers.
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
    return lax.platform_dependent(x, cpu=cpu, default=native)


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
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, *window, 1), (1, *strides, 1), padding)


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
            # Padding each slice, and not x once, takes two fifths of the time. (For the gradient
            # it would take 1.5 times as long: `_first_of_maxima` pads x.)
            y = lax.max(y, lax.pad(pixels, lowest, ((0, 0, 0), *around, (0, 0, 0))))
    return y


def _pixels(size: int, start: int, stride: int, windows: int) -> tuple[slice, int, int]:
    """Return the pixels at one place of all windows along an axis, and which windows these are.

    In window i the place is pixel start + i * stride. It is inside the image in the windows from
    ``first`` to ``end - 1``, and in the padding in the others.
    """
    # -(a // b) is -a / b rounded up.
    first, end = max(0, -(start // stride)), min(windows, (size - 1 - start) // stride + 1)
    return slice(start + first * stride, start + (end - 1) * stride + 1, stride), first, end


def _cpu_max_pool_dx(window: Pair, strides: Pair, pads: Pads, x: Array, dy: Array) -> Array:
    batch, rows, columns, channels = dy.shape
    (height, width), (down, right) = window, strides
    first = _first_of_maxima(window, strides, pads, x)

    # Cut the padded image into blocks of `strides` pixels, so that one window begins in each. A
    # pixel can only be in windows that begin in its own block, up to `above` blocks above that, and
    # up to `left` blocks to the left.
    above, left = (height - 1) // down, (width - 1) // right
    border = (0, 0), (above, above), (left, left), (0, 0)
    # Without the barrier XLA would repeat the search, and the computation of dy, in each term of
    # the sum below. Windows in the border do not exist, but add nothing: their dy is 0.
    first, dy = lax.optimization_barrier((jnp.pad(first, border), jnp.pad(dy, border)))
    # Blocks in which no window begins may still hold pixels of the last windows.
    rows, columns = rows + above, columns + left
    # Pixel (i, j) of its block, along axes that match those of [B, rows, down, columns, right, C].
    i = lax.broadcasted_iota(jnp.int32, (down, 1, right, 1), 0)
    j = lax.broadcasted_iota(jnp.int32, (down, 1, right, 1), 2)
    dx = jnp.zeros((batch, rows, down, columns, right, channels), dy.dtype)
    for m, n in np.ndindex(above + 1, left + 1):
        # In the window that begins m blocks above and n to the left, the pixel is number `place`,
        # unless the window is too small. If that is the first maximum, the pixel gets dy.
        there = slice(above - m, above - m + rows), None, slice(left - n, left - n + columns), None
        place = (i + m * down) * width + j + n * right
        inside = (i + m * down < height) & (j + n * right < width)
        dx += jnp.where(inside & (first[:, *there] == place), dy[:, *there], 0)
    dx = dx.reshape(batch, rows * down, columns * right, channels)
    # Negative amounts crop the padding; a positive one adds pixels that no window reaches.
    crop = [
        (-low, n + low - have, 0)
        for n, (low, _), have in zip(x.shape[1:3], pads, dx.shape[1:3], strict=True)
    ]
    return lax.pad(dx, jnp.zeros((), dx.dtype), ((0, 0, 0), *crop, (0, 0, 0)))


def _first_of_maxima(window: Pair, strides: Pair, pads: Pads, x: Array) -> Array:
    """Return the position of the first maximum in each window, counted in row-major order."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    last = [(n - k) // s * s for n, k, s in zip(padded.shape[1:3], window, strides, strict=True)]
    down, right = strides
    pixels = [
        padded[:, i : i + last[0] + 1 : down, j : j + last[1] + 1 : right]
        for i, j in np.ndindex(*window)
    ]
    best, first = pixels[0], jnp.zeros(pixels[0].shape, jnp.int32)
    for n, pixel in enumerate(pixels[1:], 1):
        # > and not >=: among equal values the first stays, as in XLA's own gradient.
        first = jnp.where(pixel > best, n, first)
        best = lax.max(best, pixel)
    return first
