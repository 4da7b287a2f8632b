"""2-D convolution that is fast on every platform, including CPU.

On accelerators it is XLA's own operation. On CPU, XLA has two libraries (Eigen and YNNPACK) and
loops of its own, and chooses by how the operation is stated. Here it is stated so that Eigen, the
fastest, computes it: forward and backward, also inside loops. Platforms agree up to rounding.

With ``lax.conv_general_dilated`` an update takes 1.2 to 2.6 times as long in jax 0.10.2 and
0.12.0.1, and in a loop ten times or more. The code for CPU can go once
``benchmarks/convolution.py`` shows that operation within 5%, on the oldest supported jax, both at
the top level and inside ``lax.scan``.
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
"""(vertical, horizontal)."""
Pads = tuple[Pair, Pair]
"""(top, bottom), (left, right)."""


class Form(NamedTuple):
    """Strides and padding of a convolution, and which axis of x is its channels, 3 or 1."""

    strides: Pair = (1, 1)
    pads: Pads = ((0, 0), (0, 0))
    channel: int = 3


# Size, as floats, of the images whose part of a kernel's gradient is computed at a time. They, and
# what is computed from them, have to fit in the caches of one or two cores.
_CHUNK_BYTES = 8 << 20

# With at most this many channels `_by_rows` is slow, and XLA chooses Eigen without being made to.
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
    """Cross-correlate images with a kernel, as `lax.conv_general_dilated` does.

    Args:
      x: images [B, H, W, C], or [B, C, H, W] if `data_format` is "NCHW". Integers are converted to
        the kernel's dtype and have no gradient. Fold a scale such as 1/255 into the kernel.
      kernel: [KH, KW, C, O].
      bias: [O], or None for no bias.
      strides: one for both axes, or (vertical, horizontal).
      padding: "SAME", "VALID" or ((top, bottom), (left, right)).
      data_format: of x; the result is always "NHWC". Stacked frames are cheaper as planes (NCHW).
      offset: [B], subtracted from the pixels of each image before they are padded with zeros, or
        None. For integer images only; it has no gradient.

    Returns:
      [B, OH, OW, O] in the promoted dtype of x and kernel. Differentiable in reverse mode.

    Raises:
      ValueError: shapes, strides or padding do not fit, or floating images have an offset.
    """
    channel = data_format.index("C")
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[channel] != kernel.shape[2]:
        raise ValueError(
            f"x {x.shape} ({data_format}) and kernel {kernel.shape} do not fit: kernel must be "
            "[KH, KW, C, O], and x [B, H, W, C] or, for NCHW, [B, C, H, W]; reshape them first"
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


# The gradient is stated outside the choice of platform, so that JAX never differentiates a branch,
# and XLA can drop the gradient of x or of the kernel if it is not used.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(form: Form, x: Array, kernel: Array, offset: Array | None) -> Array:
    cpu, native = partial(_cpu_conv, form), partial(_native_conv, form)
    return lax.platform_dependent(x, kernel, offset, cpu=cpu, default=native)


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
        # JAX requires cotangents of integers to have its dtype float0.
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
        # conv(x - offset) = conv(x) - offset * conv(1). So x stays bytes, which are cheap to move.
        grey = _cpu_conv_of_floats(form, jnp.ones_like(x[:1]), kernel)
        y = y - offset[:, None, None, None] * grey
    return y.astype(kernel.dtype)


def _cpu_conv_of_floats(form: Form, x: Array, kernel: Array) -> Array:
    if _in_blocks(form, x):
        blocks = _numbers(_to_blocks(form, kernel.shape, x))
        return _eigen_conv(Form(), blocks, _kernel_to_blocks(form, kernel))
    return _eigen_conv(form, _pixels(form, x), kernel)


def _in_blocks(form: Form, x: Array) -> bool:
    """Whether to compute on blocks of pixels, since integers move faster in blocks."""
    return form.strides != (1, 1) and not jnp.issubdtype(x.dtype, jnp.floating)


def _pixels(form: Form, x: Array) -> Array:
    return jnp.moveaxis(x, form.channel, 3).astype(jnp.float32)


def _eigen_conv(form: Form, x: Array, kernel: Array, dilation: Pair = (1, 1)) -> Array:
    """Convolve floats [B, H, W, C] with a kernel [KH, KW, C, O] by XLA, so that it uses Eigen.

    XLA prefers YNNPACK, which takes twice as long (jax 0.10.2), except for few channels and dilated
    images. So an empty row is put between the rows of both images and kernel, and the vertical
    stride is doubled: the sums stay the same, and Eigen skips what is empty.
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
    # On blocks the stride is 1, so the gradient is a convolution of dy, fully padded, with the
    # flipped kernel. The gradient of `_to_blocks` then puts its pixels in their places.
    taps = _kernel_to_blocks(form, kernel)
    rows, columns, _, out = taps.shape
    full = Form(pads=((rows - 1, rows - 1), (columns - 1, columns - 1)))
    conv = _eigen_conv if out <= _FEW_CHANNELS else _by_rows
    dblocks = conv(full, dy.astype(jnp.float32), taps[::-1, ::-1].swapaxes(2, 3))
    return jax.vjp(partial(_to_blocks, form, kernel.shape), x)[1](dblocks)[0]


def _by_rows(form: Form, x: Array, kernel: Array) -> Array:
    """Convolve floats, with strides of 1, by one-dimensional convolutions of their rows.

    Every row of the images is convolved with every row of the kernel, whose rows lie side by side
    as output channels. The results are added with shifts, which multiplies no row of padding.
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
    # Row r of the images and row i of the kernel add to row r + low - i of the result.
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
        # As in `_cpu_conv`. The part of all offsets is that of one image of ones.
        grey = jnp.sum(offset[:, None, None, None] * dy, axis=0, keepdims=True)
        dkernel = dkernel - _dkernel_of_floats(form, kernel, jnp.ones_like(x[:1]), grey)
    return dkernel.astype(dtype)


def _dkernel_of_floats(form: Form, kernel: Array, x: Array, dy: Array) -> Array:
    if not _in_blocks(form, x):
        return _eigen_dkernel(form, kernel.shape, _pixels(form, x).transpose(3, 1, 2, 0), dy)
    # `kernel` is needed only for its shape: `_kernel_to_blocks` is linear.
    taps, from_taps = jax.vjp(partial(_kernel_to_blocks, form), kernel)
    blocks = _numbers(_to_blocks(form, kernel.shape, x, images_last=True), axis=0)
    return from_taps(_eigen_dkernel(Form(), taps.shape, blocks, dy))[0]


def _eigen_dkernel(form: Form, kernel_shape: Sequence[int], x: Array, dy: Array) -> Array:
    """Return the gradient for a kernel: x [C, H, W, B] convolved with dy [B, OH, OW, O].

    The batch serves as input channels. XLA does the same, but transposes the arrays only at the
    top level of a program. Inside a loop neither library can compute them as they are, and it takes
    20 times as long.
    """
    # The bottom and right padding may be negative, where no window reaches the last pixels.
    pads = [
        (low, (count - 1) * stride + size - n - low)
        for n, count, size, stride, (low, _) in zip(
            x.shape[1:3], dy.shape[1:3], kernel_shape, form.strides, form.pads, strict=False
        )
    ]
    windows = Form(pads=(pads[0], pads[1]))
    dkernel = _eigen_conv(windows, x, dy.transpose(1, 2, 0, 3), dilation=form.strides)
    return dkernel.transpose(1, 2, 0, 3)


def _to_blocks(
    form: Form, kernel_shape: Sequence[int], x: Array, images_last: bool = False
) -> Array:
    """Pad, and move each block of `strides` pixels into the channels, so that the stride becomes 1.

    Returns [B, H, W, C], or [C, H, W, B] with `images_last`. Bytes are moved four at a time, as
    words of 32 bits; `_numbers` makes floats of the result.
    """
    strides, pads, channel = form
    axes = (1, 2) if channel == 3 else (2, 3)
    batch, channels, size = x.shape[0], x.shape[channel], [x.shape[axis] for axis in axes]
    counts = [  # One block for each window, and those that the last window needs in addition.
        (n + low + high - k) // s + -(-k // s)
        for n, (low, high), k, s in zip(size, pads, kernel_shape, strides, strict=False)
    ]
    fit = [(0, 0, 0)] * 4
    for axis, n, (low, _), count, s in zip(axes, size, pads, counts, strides, strict=True):
        fit[axis] = (low, count * s - n - low, 0)
    x = lax.pad(x, jnp.zeros((), x.dtype), fit)
    (rows, columns), (down, right) = counts, strides
    if channel == 3:
        x, order = x.reshape(batch, rows, down, columns, right * channels), [0, 1, 3, 2, 4]
    else:
        x, order = x.reshape(batch, channels, rows, down, columns, right), [0, 2, 4, 1, 3, 5]
    if images_last:
        order = [*order[3:], *order[1:3], 0]
    words = x.dtype == jnp.uint8 and x.shape[-1] % 4 == 0
    if words:
        # Words are made after the transposition, since XLA fuses nothing with what makes them. Else
        # it would transpose in `_numbers`, and fetch a word from its old place for each byte.
        x = x.reshape(*x.shape[:-1], -1, 4).transpose(*order, len(order))
        x = lax.bitcast_convert_type(x, jnp.uint32)
    else:
        x = x.astype(jnp.float32).transpose(order)
    return x.reshape((-1, rows, columns, batch) if images_last else (batch, rows, columns, -1))


def _numbers(x: Array, axis: int = 3) -> Array:
    """Convert the result of `_to_blocks`, whose channels are `axis`, to float32."""
    if x.dtype != jnp.uint32:
        return x
    x = jnp.moveaxis(lax.bitcast_convert_type(x, jnp.uint8), 4, axis + 1)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]).astype(jnp.float32)


def _kernel_to_blocks(form: Form, kernel: Array) -> Array:
    """Return the kernel that does on blocks, with stride 1, what `kernel` does on pixels."""
    height, width, channels, out = kernel.shape
    down, right = form.strides
    rows, columns = -(-height // down), -(-width // right)
    kernel = jnp.pad(
        kernel.astype(jnp.float32),
        ((0, rows * down - height), (0, columns * right - width), (0, 0), (0, 0)),
    )
    kernel = kernel.reshape(rows, down, columns, right, channels, out)
    block = (1, 3, 4) if form.channel == 3 else (4, 1, 3)  # The order of channels in `_to_blocks`.
    kernel = kernel.transpose(0, 2, *block, 5)
    return kernel.reshape(rows, columns, down * right * channels, out)


def _sum_by_chunks(f: Callable[..., Array], x: Array, dy: Array) -> Array:
    """Return f(x, dy), a sum over images, computed on one chunk of images after another."""
    batch = x.shape[0]
    chunk = _images_per_chunk(batch, x.size // batch)
    first = batch % chunk or chunk  # Shapes in a loop are fixed, so what is left over goes first.

    def add(i: Any, total: Array) -> Array:
        part = [lax.dynamic_slice_in_dim(a, first + i * chunk, chunk) for a in (x, dy)]
        return total + f(*part)

    return lax.fori_loop(0, (batch - first) // chunk, add, f(x[:first], dy[:first]))


def _images_per_chunk(batch: int, size: int) -> int:
    """``size`` is the number of values in one image, counting all channels."""
    limit = max(1, _CHUNK_BYTES // (4 * size))
    if batch <= 2 * limit:
        return batch  # A loop keeps the cores less busy than a single convolution does.
    return max(16, limit // 16 * 16)  # Images become channels, in vectors of up to 16.


def pair_of(value: int | Sequence[int]) -> Pair:
    """Return ``value`` as (vertical, horizontal). Raise ``ValueError`` unless both are positive."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{value} must be a positive integer, or two: (vertical, horizontal)")
    return pair[0], pair[1]


def pads_of(shape: Sequence[int], window: Sequence[int], strides: Pair, padding: Any) -> Pads:
    """Return the padding in pixels, given as "SAME", "VALID" or ((top, bottom), (left, right))."""
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(shape, window, strides, padding)
    (top, bottom), (left, right) = padding
    return (top, bottom), (left, right)
