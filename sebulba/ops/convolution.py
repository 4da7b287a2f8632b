"""2-D convolution that is fast on every platform, CPU included.

On accelerators it is XLA's own operation. On CPU XLA has two libraries for it, and its own loops,
and takes one or the other by how the operation is stated: here so that Eigen, the fastest, gets it,
forwards and backwards, inside of loops too. The gradient for images goes row by row, and the one
for a kernel over some images at a time, which stay in the cache.
All agree to rounding, so parameters and results carry over from one platform to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
DataFormat = Literal["NHWC", "NCHW"]
Pair = tuple[int, int]
"""Vertical, horizontal."""
Pads = tuple[Pair, Pair]
"""(top, bottom), (left, right)."""


class Form(NamedTuple):
    """Of a convolution: strides, padding, and the axis of x that holds its channels, 3 or 1."""

    strides: Pair = (1, 1)
    pads: Pads = ((0, 0), (0, 0))
    channel: int = 3


# Of the images whose part in a kernel's gradient is computed at once, as floats: what becomes of
# them on the way has to fit the cache of a core or two.
_CHUNK_BYTES = 8 << 20

# Up to here products of rows are slow, and XLA takes Eigen by itself.
_FEW_CHANNELS = 16


def conv2d(
    x: Array,
    kernel: Array,
    bias: Array | None = None,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[Sequence[int]] = "SAME",
    data_format: DataFormat = "NHWC",
    offset: Array | None = None,
) -> Array:
    """Cross-correlates images with a kernel, as `lax.conv_general_dilated` does.

    Args:
      x: images [B, H, W, C], or [B, C, H, W] where `data_format` is "NCHW". Integer images are read
        in the kernel's dtype (a scale such as 1/255 is cheapest folded into the kernel); they have
        no gradient.
      kernel: [KH, KW, C, O].
      bias: [O], or None for no bias.
      strides: one for both axes, or (vertical, horizontal).
      padding: "SAME", "VALID" or ((top, bottom), (left, right)).
      data_format: of x alone. A stack of frames is cheaper as planes than pixel by pixel.
      offset: [B], subtracted from the pixels of each image before they are padded with zeros, or
        None. For integer images alone; it has no gradient.

    Returns:
      [B, OH, OW, O] in the promoted dtype of x and kernel. Differentiable in reverse mode.

    Raises:
      ValueError: the ranks, the channels or the strides do not fit, or images with an offset are
        not integers.
    """
    channel = data_format.index("C")
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[channel] != kernel.shape[2]:
        raise ValueError(
            f"x {x.shape} ({data_format}) and kernel {kernel.shape} do not fit: conv2d takes x "
            "[B, H, W, C], or [B, C, H, W] with data_format NCHW, and kernel [KH, KW, C, O] with "
            "the same C; reshape or transpose them first"
        )
    dtype = kernel.dtype
    if jnp.issubdtype(x.dtype, jnp.floating):
        if offset is not None:
            raise ValueError(f"x is {x.dtype} and has an offset: subtract it from x yourself")
        dtype = jnp.promote_types(x.dtype, kernel.dtype)
        x, channel = jnp.moveaxis(x, channel, 3).astype(dtype), 3
    steps = pair_of(strides)
    size = x.shape[1:3] if channel == 3 else x.shape[2:]
    pads = pads_of(size, kernel.shape[:2], steps, padding)
    y = _conv(Form(steps, pads, channel), x, kernel.astype(dtype), offset)
    return y if bias is None else y + bias.astype(dtype)


# The gradient is stated outside the choice of platform, so that differentiation never sees a
# branch, and each part of it can be dropped when nobody asks for it.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(form: Form, x: Array, kernel: Array, offset: Array | None) -> Array:
    cpu, native = partial(_cpu_conv, form), partial(_native_conv, form)
    y: Array = lax.platform_dependent(x, kernel, offset, cpu=cpu, default=native)
    return y


def _conv_bwd(form: Form, residuals: tuple[Any, ...], dy: Array) -> tuple[Any, ...]:
    x, kernel, offset = residuals
    native = partial(_native_conv, form)
    dkernel = lax.platform_dependent(
        *(x, kernel, offset, dy),
        cpu=partial(_cpu_dkernel, form),
        default=lambda x, kernel, offset, dy: jax.vjp(
            lambda kernel: native(x, kernel, offset), kernel
        )[1](dy)[0],
    )
    doffset = None if offset is None else jnp.zeros_like(offset)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return np.zeros(x.shape, jax.dtypes.float0), dkernel, doffset
    dx = lax.platform_dependent(
        *(x, kernel, dy),
        cpu=partial(_cpu_dx, form),
        default=lambda x, kernel, dy: jax.vjp(lambda x: native(x, kernel), x)[1](dy)[0],
    )
    return dx, dkernel, doffset


_conv.defvjp(
    lambda form, x, kernel, offset: (_conv(form, x, kernel, offset), (x, kernel, offset)),
    _conv_bwd,
)


def _native_conv(form: Form, x: Array, kernel: Array, offset: Array | None = None) -> Array:
    x = jnp.moveaxis(x, form.channel, 3)
    if offset is not None:
        x = x.astype(jnp.float32) - offset[:, None, None, None]
    return lax.conv_general_dilated(
        x.astype(kernel.dtype),
        kernel,
        form.strides,
        form.pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _cpu_conv(form: Form, x: Array, kernel: Array, offset: Array | None) -> Array:
    y = _cpu_conv_of_floats(form, x, kernel)
    if offset is not None:
        # Bytes are cheaper to move than what they would become.
        grey = _cpu_conv_of_floats(form, jnp.ones_like(x[:1]), kernel)
        y = y - offset[:, None, None, None] * grey
    return y.astype(kernel.dtype)


def _cpu_conv_of_floats(form: Form, x: Array, kernel: Array) -> Array:
    if _in_blocks(form, x):
        blocks = _numbers(_to_blocks(form, kernel.shape, x))
        return _eigen_conv(Form(), blocks, _kernel_to_blocks(form, kernel))
    return _eigen_conv(form, _pixels(form, x), kernel)


def _in_blocks(form: Form, x: Array) -> bool:
    """Whether the pixels are bytes or the like, which move faster in blocks than one by one."""
    return form.strides != (1, 1) and not jnp.issubdtype(x.dtype, jnp.floating)


def _pixels(form: Form, x: Array) -> Array:
    return jnp.moveaxis(x, form.channel, 3).astype(jnp.float32)


def _eigen_conv(form: Form, x: Array, kernel: Array, dilation: Pair = (1, 1)) -> Array:
    """XLA's convolution of floats [B, H, W, C] with a kernel [KH, KW, C, O], by Eigen.

    XLA hands what it can to YNNPACK, which takes twice as long in jax 0.10.2, but no dilated images
    and no few channels. With every other row empty, in images and kernel alike, and twice the
    stride, the sums are the same ones; Eigen skips what is empty.
    """
    (down, right), (vertical, horizontal), _ = form
    rows = 1 if max(kernel.shape[2:]) <= _FEW_CHANNELS else 2
    return lax.conv_general_dilated(
        x,
        kernel.astype(jnp.float32),
        (rows * down, right),
        ((rows * vertical[0], rows * vertical[1]), horizontal),
        lhs_dilation=(rows, 1),
        rhs_dilation=(rows * dilation[0], dilation[1]),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _cpu_dx(form: Form, x: Array, kernel: Array, dy: Array) -> Array:
    taps = _kernel_to_blocks(form, kernel)
    rows, columns, _, out = taps.shape
    full = Form(pads=((rows - 1, rows - 1), (columns - 1, columns - 1)))
    conv = _eigen_conv if out <= _FEW_CHANNELS else _by_rows
    dblocks = conv(full, dy.astype(jnp.float32), taps[::-1, ::-1].swapaxes(2, 3))
    dx: Array = jax.vjp(partial(_to_blocks, form, kernel.shape), x)[1](dblocks)[0]
    return dx


def _by_rows(form: Form, x: Array, kernel: Array) -> Array:
    """The convolution of floats, with strides of 1, as one-dimensional ones of their rows.

    The rows of the kernel are side by side, as channels of the result, and rows of the results are
    added. Of the zeros above and below the images, none is multiplied.
    """
    rows, columns, channels, out = kernel.shape
    batch, height, width, _ = x.shape
    y = lax.conv_general_dilated(
        x.reshape(batch * height, width, channels),
        kernel.transpose(1, 2, 0, 3).reshape(columns, channels, rows * out),
        (1,),
        form.pads[1:],
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    y = y.reshape(batch, height, -1, rows, out)
    (low, high), none, zero = form.pads[0], (0, 0, 0), jnp.zeros((), y.dtype)
    shifted = [
        lax.pad(y[:, :, :, i], zero, (none, (low - i, high - (rows - 1 - i), 0), none, none))
        for i in range(rows)
    ]
    return sum(shifted[1:], shifted[0])


def _cpu_dkernel(form: Form, x: Array, kernel: Array, offset: Array | None, dy: Array) -> Array:
    dtype, kernel, dy = kernel.dtype, kernel.astype(jnp.float32), dy.astype(jnp.float32)
    dkernel = _sum_by_chunks(partial(_dkernel_of_floats, form, kernel), x, dy)
    if offset is not None:
        grey = jnp.sum(offset[:, None, None, None] * dy, axis=0, keepdims=True)
        dkernel = dkernel - _dkernel_of_floats(form, kernel, jnp.ones_like(x[:1]), grey)
    return dkernel.astype(dtype)


def _dkernel_of_floats(form: Form, kernel: Array, x: Array, dy: Array) -> Array:
    if not _in_blocks(form, x):
        return _eigen_dkernel(form, kernel.shape, _pixels(form, x), dy)
    taps, from_taps = jax.vjp(partial(_kernel_to_blocks, form), kernel)
    blocks = _numbers(_to_blocks(form, kernel.shape, x))
    dkernel: Array = from_taps(_eigen_dkernel(Form(), taps.shape, blocks, dy))[0]
    return dkernel


def _eigen_dkernel(form: Form, kernel_shape: Sequence[int], x: Array, dy: Array) -> Array:
    """The gradient for a kernel: a convolution of x with dy, the batch in place of the channels.

    It is XLA's own, but for the transposes. XLA has them where a program begins; inside of a loop
    it has none, takes neither library, and 20 times as long.
    """
    pads = [
        (low, (count - 1) * stride + size - n - low)
        for n, count, size, stride, (low, _) in zip(
            x.shape[1:3], dy.shape[1:3], kernel_shape, form.strides, form.pads, strict=False
        )
    ]
    windows = Form(pads=(pads[0], pads[1]))
    x, dy = x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
    return _eigen_conv(windows, x, dy, dilation=form.strides).transpose(1, 2, 0, 3)


def _to_blocks(form: Form, kernel_shape: Sequence[int], x: Array) -> Array:
    """Pads, and moves each block of `strides` pixels into the channels: the stride becomes 1.

    The result is for `_numbers`: bytes are still words of four, of which a quarter has to move.
    """
    if form.channel == 1:  # Each plane by itself; what moves after that is whole blocks.
        planes = x.reshape(-1, *x.shape[2:], 1)
        blocks = _to_blocks(form._replace(channel=3), kernel_shape, planes)
        blocks = blocks.reshape(*x.shape[:2], *blocks.shape[1:]).transpose(0, 2, 3, 1, 4)
        return blocks.reshape(*blocks.shape[:3], -1)
    strides, pads, _ = form
    batch, channels = x.shape[0], x.shape[3]
    counts = [
        (n + low + high - k) // s + -(-k // s)
        for n, (low, high), k, s in zip(x.shape[1:3], pads, kernel_shape, strides, strict=False)
    ]
    fit = [
        (low, count * s - n - low, 0)
        for n, (low, _), count, s in zip(x.shape[1:3], pads, counts, strides, strict=True)
    ]
    (rows, columns), (down, right) = counts, strides
    words = x.dtype == jnp.uint8 and right * channels % 4 == 0
    x = x if words else x.astype(jnp.float32)
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *fit, (0, 0, 0)))
    if words:
        x = lax.bitcast_convert_type(x.reshape(batch, -1, 4), jnp.uint32)
    x = x.reshape(batch, rows, down, columns, -1).transpose(0, 1, 3, 2, 4)
    return x.reshape(batch, rows, columns, -1)


def _numbers(x: Array) -> Array:
    """What `_to_blocks` gave, as float32."""
    if x.dtype != jnp.uint32:
        return x
    # Without the barrier every byte would look up its word.
    x = lax.bitcast_convert_type(lax.optimization_barrier(x), jnp.uint8)
    return x.reshape(*x.shape[:3], -1).astype(jnp.float32)


def _kernel_to_blocks(form: Form, kernel: Array) -> Array:
    """The kernel that does on the blocks, with stride 1, what `kernel` does on the pixels."""
    height, width, channels, out = kernel.shape
    down, right = form.strides
    rows, columns = -(-height // down), -(-width // right)
    kernel = jnp.pad(
        kernel.astype(jnp.float32),
        ((0, rows * down - height), (0, columns * right - width), (0, 0), (0, 0)),
    )
    kernel = kernel.reshape(rows, down, columns, right, channels, out)
    block = (1, 3, 4) if form.channel == 3 else (4, 1, 3)
    kernel = kernel.transpose(0, 2, *block, 5)
    return kernel.reshape(rows, columns, down * right * channels, out)


def _sum_by_chunks(f: Callable[..., Array], x: Array, dy: Array) -> Array:
    """f(x, dy), which is a sum over images, over chunks of images."""
    batch = x.shape[0]
    chunk = _images_per_chunk(batch, x.size // batch)
    first = batch % chunk or chunk

    def add(i: Any, total: Array) -> Array:
        part = [lax.dynamic_slice_in_dim(a, first + i * chunk, chunk) for a in (x, dy)]
        return total + f(*part)

    total: Array = lax.fori_loop(0, (batch - first) // chunk, add, f(x[:first], dy[:first]))
    return total


def _images_per_chunk(batch: int, size: int) -> int:
    """size: pixels of an image, with its channels."""
    limit = max(1, _CHUNK_BYTES // (4 * size))
    if batch <= 2 * limit:
        return batch  # A loop keeps the cores less busy than a single convolution does.
    return max(16, limit // 16 * 16)  # Vectors are of at most 16 images: they become channels.


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
