"""The parts of the reference networks that make features of an observation, in flax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sebulba.config import NetworkConfig
from sebulba.ops.convolution import DataFormat, conv2d
from sebulba.ops.pooling import max_pool
from sebulba.ops.relu import relu
from sebulba.types import ArrayTree

Array = jax.Array

SMALL = ((16, 8, 4), (32, 4, 2))
"""Channels, kernel size and stride of each convolution: Mnih et al. 2016, section 5.1; Espeholt et
al. 2018, figure 3, left, without its LSTM."""
SHALLOW = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The same for Mnih et al. 2015, "Human-level control", methods."""

_LEAST_DEVIATION = 10
"""The smallest standard deviation, in gray levels, that pixels are divided by.

Frames of twelve Atari games have 8 to 74; a frame of a single color has 0."""

_HE = nn.initializers.he_normal()
_LECUN = nn.initializers.lecun_normal()
_ORTHOGONAL = nn.initializers.orthogonal(math.sqrt(2))


def encode(config: NetworkConfig, dtype: Any, observation: ArrayTree, name: str = "torso") -> Array:
    """Map arrays ``[N, ...]`` to features ``[N, F]``, with a torso called ``name``.

    Convolutions take each image, and an MLP all that is none. Each has layers of ``hidden_sizes``
    of its own. Their features are concatenated.
    """
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    if config.torso == "mlp":
        return torso(config, dtype, name)(observation)
    if len(leaves) == 1:
        return torso(config, dtype, name)(leaves[0][1])
    images = {_name(path): leaf for path, leaf in leaves if is_image(leaf.shape[1:])}
    vectors = [leaf for _, leaf in leaves if not is_image(leaf.shape[1:])]
    features = [torso(config, dtype, f"{name}_{of}")(leaf) for of, leaf in images.items()]
    if vectors:
        features.append(MLP(config, dtype, name=name)(vectors))
    return jnp.concatenate(features, axis=-1)


def _name(path: Any) -> str:
    return "_".join(str(entry.key) for entry in path)


def torso(config: NetworkConfig, dtype: Any, name: str = "torso") -> nn.Module:
    """Return the module of ``config.torso``, which maps arrays ``[N, ...]`` to ``[N, F]``."""
    kinds: dict[str, Callable[..., nn.Module]] = {
        "mlp": MLP,
        "small": partial(ConvTorso, SMALL),
        "shallow": partial(ConvTorso, SHALLOW),
        "deep": ResNetTorso,
    }
    return kinds[config.torso](config, dtype, name=name)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether an array of an observation is large enough an image for the convolutions.

    Images are ``[H, W]`` or ``[H, W, C]``. The three convolutions of ``SHALLOW`` leave at least one
    pixel of 36 x 36, and none of 35 x 35.
    """
    return len(shape) in (2, 3) and min(shape[:2]) >= 36


def has_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an array is like an image, but with its channels, or several frames, in front."""
    return len(shape) == 3 and not is_image(shape) and is_image(shape[1:])


class MLP(nn.Module):
    """Dense layers on all arrays of the observation, flattened and concatenated.

    Those with tanh begin with orthogonal weights of scale sqrt(2), as in Huang et al. 2022, "The 37
    Implementation Details of PPO", detail 2.
    """

    config: NetworkConfig
    dtype: Any

    @nn.compact
    def __call__(self, observation: ArrayTree) -> Array:
        """Map arrays ``[N, ...]`` to features ``[N, F]``."""
        leaves = [_flatten(leaf) for leaf in jax.tree.leaves(observation)]
        kernel_init = _ORTHOGONAL if self.config.activation == "tanh" else _LECUN
        return _dense(self.config, self.dtype, jnp.concatenate(leaves, axis=-1), kernel_init)


class ConvTorso(nn.Module):
    """Convolutions and dense layers, each followed by a ReLU.

    Weights are initialized with the variance of He et al. 2015, eq. 10. Most pixels of a game never
    change, so the features of its frames differ little. With half that variance in every layer they
    would differ even less: for frames of Pong, by a standard deviation of 0.006 (features of size
    0.2) instead of 0.016 (of size 0.5).
    """

    convolutions: tuple[tuple[int, int, int], ...]
    """Channels, kernel size and stride of each convolution."""
    config: NetworkConfig
    dtype: Any

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Map images ``[N, H, W]``, or with channels as in ``_data_format``, to ``[N, F]``."""
        x, data_format = _channels(images), _data_format(self.config)
        normalize = self.config.pixels == "normalized"
        for channels, size, stride in self.convolutions:
            layer = (channels, size, stride, "VALID", self.dtype, _HE)
            x = Conv(*layer, data_format, normalize)(x)
            x = _activated(self.config, self.dtype, x)
            # conv2d always returns NHWC; and floats, so only the first layer normalizes.
            data_format = "NHWC"
        return _dense(self.config, self.dtype, x.reshape(x.shape[0], -1), _HE)


class ResNetTorso(nn.Module):
    """The residual network of Espeholt et al. 2018, figure 3, right: there, 15 convolutions."""

    config: NetworkConfig
    dtype: Any

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Map images ``[N, H, W]``, or with channels as in ``_data_format``, to ``[N, F]``."""
        x, data_format = _channels(images), _data_format(self.config)
        normalize = self.config.pixels == "normalized"
        for features in self.config.channels:
            x = Conv(features, 3, 1, "SAME", self.dtype, _LECUN, data_format, normalize)(x)
            x, data_format = max_pool(x, 3, 2), "NHWC"
            for _ in range(self.config.num_blocks):
                y = Conv(features, 3, 1, "SAME", self.dtype)(relu(x))
                x = x + Conv(features, 3, 1, "SAME", self.dtype)(relu(y))
        return _dense(self.config, self.dtype, relu(x).reshape(x.shape[0], -1), _LECUN)


class Conv(nn.Module):
    """A convolution of images, computed in the way that is fastest on each platform.

    uint8 pixels are scaled to 0 to 1 or, if ``normalize``, to mean 0 and variance 1 over each
    image with all its channels. Other dtypes are taken as they are.
    """

    features: int
    size: int
    stride: int
    padding: str
    dtype: Any
    kernel_init: nn.initializers.Initializer = _LECUN
    data_format: DataFormat = "NHWC"
    normalize: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map ``[N, H, W, C]``, or as in ``data_format``, to ``[N, H', W', features]``."""
        channels = x.shape[self.data_format.index("C")]
        shape = (self.size, self.size, channels, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        convolve = partial(
            conv2d, strides=self.stride, padding=self.padding, data_format=self.data_format
        )
        if x.dtype != jnp.uint8:
            return convolve(x.astype(self.dtype), kernel.astype(self.dtype), bias)
        kernel = (kernel / 255).astype(self.dtype)  # Cheaper than dividing the pixels.
        if not self.normalize:
            return convolve(x, kernel, bias)
        # A convolution is linear, so its results can be divided by the deviation instead of the
        # pixels, which stay bytes. 255 undoes the scale of the kernel.
        mean, deviation = _moments(x)
        scale = (255 / deviation)[:, None, None, None]
        return (convolve(x, kernel, offset=mean) * scale + bias).astype(self.dtype)


def _data_format(config: NetworkConfig) -> DataFormat:
    """Stacked frames are planes [k, H, W]; images with channels of their own are [H, W, C]."""
    return "NCHW" if config.frame_stack > 1 else "NHWC"


def _moments(images: Array) -> tuple[Array, Array]:
    """Return the mean and standard deviation ``[N]`` of each image with all its channels."""
    x = images.astype(jnp.float32)
    deviation = jnp.maximum(jnp.std(x, (1, 2, 3)), _LEAST_DEVIATION)
    return jnp.mean(x, (1, 2, 3)), deviation


def _dense(
    config: NetworkConfig, dtype: Any, x: Array, kernel_init: nn.initializers.Initializer
) -> Array:
    for size in config.hidden_sizes:
        x = nn.Dense(size, dtype=dtype, kernel_init=kernel_init)(x)
        x = _activated(config, dtype, x)
    return x


def _activated(config: NetworkConfig, dtype: Any, x: Array) -> Array:
    """What follows a layer of a torso; images ``[N, H, W, C]`` are normalized over C."""
    if config.layer_norm:
        x = nn.LayerNorm(dtype=dtype)(x)
    return nn.tanh(x) if config.activation == "tanh" else relu(x)


def _channels(images: Array) -> Array:
    """Return images ``[N, H, W]`` as ``[N, H, W, 1]``, and others as they are."""
    return images[..., None] if images.ndim == 3 else images


def _flatten(leaf: Array) -> Array:
    """Flatten ``leaf`` ``[N, ...]`` to float32 ``[N, F]``."""
    x = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        # Integers can be of any size, such as scores: symlog (Hafner et al. 2023) tames them.
        x = jnp.sign(x) * jnp.log1p(jnp.abs(x))
    return x
