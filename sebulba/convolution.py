from __future__ import annotations

from jax import lax


def conv2d(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(x, size, stride):
    return lax.reduce_window(
        x, -float("inf"), lax.max, (1, size, size, 1), (1, stride, stride, 1), "SAME"
    )
