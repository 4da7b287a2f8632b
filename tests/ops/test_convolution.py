"""conv2d and max_pool against XLA's own operations: values, gradients, and what is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from sebulba.ops import convolution
from sebulba.ops.convolution import DataFormat, conv2d
from sebulba.ops.pooling import max_pool

CONVOLUTIONS = {
    "shallow 1": ((5, 36, 36, 4), (8, 8, 8), 4, "VALID"),
    "shallow 2": ((5, 12, 12, 3), (4, 4, 5), 2, "VALID"),
    "shallow 3": ((5, 7, 7, 3), (3, 3, 4), 1, "VALID"),
    "deep": ((5, 9, 9, 3), (3, 3, 4), 1, "SAME"),
    "odd, SAME": ((5, 11, 8, 2), (3, 3, 4), 2, "SAME"),
    "kernel not a multiple of the stride": ((5, 13, 14, 2), (5, 3, 4), (3, 2), "VALID"),
    "kernel smaller than the stride": ((5, 11, 11, 2), (1, 2, 3), 3, "SAME"),
    "many channels": ((5, 9, 8, 20), (3, 3, 24), 1, "SAME"),
    "many channels, strided": ((5, 12, 11, 20), (4, 4, 24), 2, "SAME"),
    "wide": ((5, 9, 9, 20), (3, 3, 8), 1, "VALID"),
    "narrow": ((5, 9, 9, 8), (3, 3, 20), 1, "SAME"),
    "explicit": ((5, 9, 10, 2), (3, 4, 3), (2, 1), ((2, 0), (1, 3))),
    "one pixel": ((5, 3, 3, 2), (3, 3, 4), 1, "VALID"),
}
FORMATS: list[DataFormat] = ["NHWC", "NCHW"]
POOLS = {
    "deep": ((3, 11, 11, 2), 3, 2, "SAME"),
    "deep, even": ((3, 8, 8, 2), 3, 2, "SAME"),
    "halves": ((3, 8, 9, 2), 2, 2, "VALID"),
    "dense": ((3, 6, 6, 2), 3, 1, "SAME"),
    "more padding than pixels": ((3, 2, 3, 2), 3, 1, ((2, 2), (2, 2))),
    "uneven": ((3, 10, 9, 2), (3, 2), (2, 3), ((1, 2), (0, 1))),
}


def native_conv(x: Any, kernel: Any, strides: Any, padding: Any) -> Any:
    strides = (strides, strides) if isinstance(strides, int) else strides
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers)


def native_pool(x: Any, window: Any, strides: Any, padding: Any) -> Any:
    window = (window, window) if isinstance(window, int) else window
    strides = (strides, strides) if isinstance(strides, int) else strides
    padding = padding if isinstance(padding, str) else ((0, 0), *padding, (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, *window, 1), (1, *strides, 1), padding)


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def conv_inputs(name: str) -> tuple[jax.Array, jax.Array, Any, Any]:
    shape, (height, width, out), strides, padding = CONVOLUTIONS[name]
    kernel = normal(1, (height, width, shape[3], out))
    return normal(0, shape), kernel, strides, padding


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.map(jnp.shape, actual) == jax.tree.map(jnp.shape, expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = np.abs(np.asarray(e, np.float64)).max()
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * scale)


def value_and_gradients(f: Any, *arguments: jax.Array) -> Any:
    """f, and its vector-Jacobian product with an output that is different everywhere."""

    def run(*arguments: jax.Array) -> Any:
        y, vjp = jax.vjp(f, *arguments)
        return y, vjp(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return jax.jit(run)(*arguments)


@pytest.mark.parametrize(
    ("name", "frames"), [*((name, 2) for name in CONVOLUTIONS), ("deep", 1), ("deep", 5)]
)
def test_conv2d_equals_xla(name: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over several chunks of frames, the last of them shorter."""
    x, kernel, strides, padding = conv_inputs(name)
    monkeypatch.setattr(convolution, "_images_per_chunk", lambda batch, size: frames)
    ours = value_and_gradients(lambda x, k: conv2d(x, k, None, strides, padding), x, kernel)
    xla = value_and_gradients(lambda x, k: native_conv(x, k, strides, padding), x, kernel)
    assert_close(ours, xla)


@pytest.mark.parametrize("name", POOLS)
def test_max_pool_equals_xla(name: str) -> None:
    """Rounded pixels make ties, which the first pixel of the window wins."""
    shape, window, strides, padding = POOLS[name]
    x = jnp.round(normal(0, shape))
    ours = value_and_gradients(lambda x: max_pool(x, window, strides, padding), x)
    xla = value_and_gradients(lambda x: native_pool(x, window, strides, padding), x)
    assert_close(ours, xla)


def test_bias_is_added_to_every_pixel() -> None:
    x, kernel, strides, padding = conv_inputs("deep")
    bias = jnp.arange(4.0)
    with_bias = conv2d(x, kernel, bias, strides, padding)
    assert_close(with_bias, native_conv(x, kernel, strides, padding) + bias)


def test_bfloat16_gives_bfloat16() -> None:
    x, kernel, strides, padding = conv_inputs("deep")
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    y, grads = value_and_gradients(lambda x, k: conv2d(x, k, None, strides, padding), x, kernel)
    assert {a.dtype for a in (y, *grads)} == {jnp.dtype(jnp.bfloat16)}
    expected = native_conv(x.astype(jnp.float32), kernel.astype(jnp.float32), strides, padding)
    assert_close(y.astype(jnp.float32), expected, 1e-2)
    pooled, _ = value_and_gradients(lambda x: max_pool(x, 3, 2), x)
    assert pooled.dtype == jnp.bfloat16


def test_mixed_dtypes_are_promoted() -> None:
    x, kernel, strides, padding = conv_inputs("deep")
    half = x.astype(jnp.bfloat16)
    assert_close(
        conv2d(half, kernel, None, strides, padding),
        native_conv(half.astype(jnp.float32), kernel, strides, padding),
    )


@pytest.mark.parametrize("name", ["shallow 1", "deep", "odd, SAME", "many channels, strided"])
def test_planes_are_the_same_images(name: str) -> None:
    x, kernel, strides, padding = conv_inputs(name)

    def conv(x: Any, kernel: Any) -> Any:
        return conv2d(jnp.moveaxis(x, 3, 1), kernel, None, strides, padding, "NCHW")

    ours = value_and_gradients(conv, x, kernel)
    pixels = value_and_gradients(lambda x, k: conv2d(x, k, None, strides, padding), x, kernel)
    assert_close(ours, pixels)


INTEGERS = {
    "atari": (4, 8, 4, "VALID"),  # The first layer of its networks.
    "one channel": (1, 8, 4, "SAME"),
    "stride 1": (4, 3, 1, ((1, 2), (3, 0))),
    "padded": (2, 5, 2, ((0, 0), (2, 1))),
    "no whole words": (3, 4, 2, "SAME"),  # Of the rows of a block.
    "gaps": (4, 2, 4, "VALID"),  # Pixels between the windows are not read.
}
OFFSETS = (0.0, 3.5, 100.0, 255.0, -20.0)


@pytest.mark.parametrize(
    ("name", "dtype", "data_format", "has_offset"),
    [
        *((name, "uint8", data_format, True) for name in INTEGERS for data_format in FORMATS),
        *(
            (name, "uint8", data_format, False)
            for name, data_format in zip(INTEGERS, 3 * FORMATS, strict=True)
        ),
        # Others than bytes are numbers from the start.
        ("atari", "int16", "NHWC", False),
        ("atari", "uint32", "NCHW", True),
        ("stride 1", "int16", "NCHW", True),
    ],
)
def test_integer_images_are_read_in_the_kernels_dtype(
    name: str, dtype: str, data_format: DataFormat, has_offset: bool
) -> None:
    channels, size, stride, padding = INTEGERS[name]
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.normal(size=(size, size, channels, 6)), jnp.float32)
    pixels = jnp.asarray(random.integers(0, 256, (5, 37, 35, channels)), dtype)
    offset = jnp.asarray(OFFSETS) if has_offset else None
    strides = (stride, stride)

    def ours(kernel: jax.Array, pixels: jax.Array) -> Any:
        given = pixels if data_format == "NHWC" else jnp.moveaxis(pixels, 3, 1)
        y = conv2d(given, kernel, None, strides, padding, data_format, offset)
        return jnp.sin(y / 1000).sum()

    def xla(kernel: jax.Array, pixels: jax.Array) -> Any:
        images = pixels.astype(jnp.float32)
        if offset is not None:
            images = images - offset[:, None, None, None]
        return jnp.sin(native_conv(images, kernel, strides, padding) / 1000).sum()

    results = (jax.jit(jax.value_and_grad(loss))(kernel, pixels) for loss in (ours, xla))
    assert_close(*results, 1e-4)


@pytest.mark.parametrize("stride", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_an_offset_costs_no_precision(stride: int) -> None:
    """Pixels that are far from 0 and near one another, in bfloat16."""
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.normal(size=(8, 8, 4, 6)), jnp.float32)
    level = np.array([230.0, 30.0])
    noise = random.normal(0, 10, (2, 36, 36, 4))
    pixels = jnp.asarray(np.clip(level[:, None, None, None] + noise, 0, 255), jnp.uint8)

    def conv(kernel: Any) -> Any:
        strides = (stride, stride)
        return conv2d(pixels, kernel, None, strides, "SAME", offset=jnp.asarray(level))

    exact, exact_vjp = jax.vjp(conv, kernel)
    rough, rough_vjp = jax.vjp(conv, kernel.astype(jnp.bfloat16))
    dy = jnp.asarray(random.normal(size=exact.shape), jnp.bfloat16)
    pairs = ((rough, exact), (rough_vjp(dy)[0], exact_vjp(dy.astype(jnp.float32))[0]))
    for got, expected in pairs:
        error = np.linalg.norm(np.asarray(got, np.float32) - expected)
        assert error < 0.006 * np.linalg.norm(expected)


def test_floats_have_no_offset() -> None:
    x, kernel, strides, padding = conv_inputs("deep")
    with pytest.raises(ValueError, match="x is float32 and has an offset: subtract it"):
        conv2d(x, kernel, None, strides, padding, offset=jnp.ones(5))


def lowered(platform: str, case: str = "deep") -> str:
    """What an update of one convolution and one pooling is on a platform."""
    x, kernel, strides, padding = conv_inputs(case)

    def loss(x: jax.Array, kernel: jax.Array) -> Any:
        return max_pool(conv2d(x, kernel, None, strides, padding), 3, 2).sum()

    gradients = jax.jit(jax.grad(loss, (0, 1)))
    return gradients.trace(x, kernel).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm"])
def test_accelerators_run_xlas_operations(platform: str) -> None:
    text = lowered(platform)
    assert text.count("stablehlo.convolution") == 3
    assert "stablehlo.select_and_scatter" in text
    assert "stablehlo.dot_general" not in text


@pytest.mark.slow  # It reads what this version of XLA compiles to.
@pytest.mark.parametrize("name", ["shallow 3", "many channels", "many channels, strided", "wide"])
@pytest.mark.parametrize("in_scan", [False, True])
def test_cpu_runs_what_is_fast(name: str, in_scan: bool) -> None:
    """All convolutions are of the order that XLA has libraries for, and none is for YNNPACK."""
    x, kernel, strides, padding = conv_inputs(name)

    def once(x: Any, kernel: Any) -> Any:
        y, vjp = jax.vjp(lambda x, k: conv2d(x, k, None, strides, padding), x, kernel)
        return y, vjp(jnp.sin(y))

    def scan(x: Any, kernel: Any) -> Any:
        return lax.map(lambda x: once(x, kernel), jnp.stack([x, -x]))

    text = jax.jit(scan if in_scan else once).lower(x, kernel).compile().as_text()
    convolutions = [line for line in text.splitlines() if " convolution(" in line]
    assert len(convolutions) == 3
    for line in convolutions:
        assert "b01f_01io->b01f" in line or "b0f_0io->b0f" in line
    assert "ynn_fusion" not in text


@pytest.mark.parametrize("case", ["deep", "many channels, strided"])
def test_cpu_runs_no_slow_operation(case: str) -> None:
    text = lowered("cpu", case)
    assert text.count("stablehlo.convolution") == 3
    for slow in ("select_and_scatter", "reduce_window"):
        assert f"stablehlo.{slow}" not in text


def test_the_gradient_nobody_asks_for_is_not_computed() -> None:
    def flops(argnums: Any) -> float:
        gradient = jax.jit(jax.grad(lambda x, k: jnp.sin(conv2d(x, k)).sum(), argnums))
        x, kernel, _, _ = conv_inputs("deep")
        analysis = gradient.lower(x, kernel).compile().cost_analysis()
        assert analysis is not None
        return float(analysis["flops"])

    # One of three convolutions.
    assert flops(1) < 0.75 * flops((0, 1))


def test_works_in_scan_and_shard_map() -> None:
    x, kernel, strides, padding = conv_inputs("deep")
    x = jnp.concatenate([x, -x])[:8]

    def loss(conv: Any, x: jax.Array, kernel: jax.Array) -> Any:
        return jnp.sin(conv(x, kernel)).sum()

    def ours(x: jax.Array, kernel: jax.Array) -> Any:
        return conv2d(x, kernel, None, strides, padding)

    def xla(x: jax.Array, kernel: jax.Array) -> Any:
        return native_conv(x, kernel, strides, padding)

    def body(total: jax.Array, x: jax.Array) -> Any:
        return total + jax.grad(loss, 2)(ours, x, kernel), None

    expected = jax.grad(loss, 2)(xla, x, kernel)
    in_scan, _ = lax.scan(body, jnp.zeros_like(kernel), x.reshape(2, 4, *x.shape[1:]))
    assert_close(in_scan, expected)

    mesh = Mesh(np.array(jax.devices()[:2]), ("d",), axis_types=(AxisType.Auto,))
    shards = jax.shard_map(
        lambda x, kernel: lax.psum(jax.grad(loss, 2)(ours, x, kernel), "d"),
        mesh=mesh,
        in_specs=(PartitionSpec("d"), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    assert_close(jax.jit(shards)(x, kernel), expected)


@pytest.mark.parametrize(
    ("shape", "kernel", "strides"),
    [
        ((9, 9, 3), (3, 3, 3, 4), 1),
        ((2, 9, 9, 3), (3, 3, 2, 4), 1),
        ((2, 9, 9, 3), (3, 3, 3, 4), 0),
    ],
)
def test_inputs_that_do_not_fit_are_refused(shape: Any, kernel: Any, strides: int) -> None:
    with pytest.raises(ValueError, match=r"must|fit"):
        conv2d(jnp.zeros(shape), jnp.zeros(kernel), None, strides)
