"""The reference networks, in flax.

Every network maps timesteps ``[T, B, ...]`` and a recurrent state ``[B, ...]`` to outputs
``[T, B, ...]`` and the next state. Frame stacking is part of that state: the environment gives
single frames, and the last ones are kept on the device beside the LSTM's state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sebulba.config import NetworkConfig
from sebulba.ops.convolution import DataFormat, conv2d
from sebulba.ops.lstm import lstm
from sebulba.ops.pooling import max_pool
from sebulba.types import ArrayTree, BoxSpec, EnvSpec, State, Timestep

Array = jax.Array

SMALL = ((16, 8, 4), (32, 4, 2))
"""Mnih et al. 2016, section 5.1; Espeholt et al. 2018, figure 3, left, without its LSTM."""
SHALLOW = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Mnih et al. 2015, "Human-level control", methods."""

_LEAST_DEVIATION = 10
"""Grey levels. Frames of twelve Atari games have 8 to 74; one of a single color has none."""

_HE = nn.initializers.he_normal()
_LECUN = nn.initializers.lecun_normal()


class Network(nn.Module):
    """Torso, optional LSTM core; the heads are the caller's.

    Attributes:
      config: sizes and kinds.
      spec: what the environment observes and takes.
      heads: ``heads()`` builds a module that maps features ``[T, B, F]`` to outputs.
    """

    config: NetworkConfig
    spec: EnvSpec
    heads: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, timestep: Timestep, state: dict[str, State]) -> tuple[ArrayTree, State]:
        """Outputs ``[T, B, ...]`` for timesteps ``[T, B, ...]`` from ``state`` ``[B, ...]``."""
        dtype = jnp.dtype(self.config.dtype)
        state = dict(state)
        observation, action = _unpack(timestep.observation)
        if self.config.frame_stack > 1:
            observation, state["frames"] = stack_frames(
                observation, timestep.first, state["frames"]
            )
        lead = timestep.first.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
        features = _torso(self.config, dtype)(flat)
        features = features.reshape(*lead, -1)
        if self.config.core == "lstm":
            inputs = _core_inputs(features, timestep.reward, action, self.spec)
            features, state["lstm"] = LSTMCore(self.config.core_size, dtype)(
                inputs, timestep.first, state["lstm"]
            )
        return self.heads()(features.astype(jnp.float32)), state


def initial_state(config: NetworkConfig, spec: EnvSpec, batch_size: int) -> dict[str, State]:
    """The state of ``Network`` at the start of an episode, ``[B, ...]``: zeros."""
    state: dict[str, State] = {}
    if config.frame_stack > 1:
        frame, _ = _unpack(spec.observation)
        state["frames"] = jnp.zeros((batch_size, config.frame_stack - 1, *frame.shape), frame.dtype)
    if config.core == "lstm":
        zeros = jnp.zeros((batch_size, config.core_size), jnp.float32)
        state["lstm"] = (zeros, zeros)
    return state


def stack_frames(frames: Array, first: Array, before: Array) -> tuple[Array, Array]:
    """Stack each frame with those before it in the same episode.

    Args:
      frames: ``[T, B, ...]``, one frame for each step.
      first: ``[T, B]``, first step of an episode.
      before: ``[B, k-1, ...]``, the frames before ``frames[0]``, oldest first; zeros where they
        belong to another episode.

    Returns:
      Stacks ``[T, B, k, ...]``, the newest last and zeros from before the episode's start, and
      the frames ``[B, k-1, ...]`` before the next step.
    """
    length, depth = frames.shape[0], before.shape[1]
    frames = jnp.concatenate([jnp.moveaxis(before, 1, 0), frames])
    episode = jnp.cumsum(first, axis=0, dtype=jnp.int32)
    episode = jnp.concatenate([jnp.zeros((depth, *first.shape[1:]), jnp.int32), episode])

    def delayed(delay: int) -> Array:
        window = slice(depth - delay, depth - delay + length)
        same = episode[window] == episode[depth:]
        return _where(same, frames[window])

    stacks = jnp.stack([delayed(delay) for delay in range(depth, -1, -1)], axis=2)
    last = _where(episode[length:] == episode[-1], frames[length:])
    return stacks, jnp.moveaxis(last, 0, 1)


def _where(keep: Array, frames: Array) -> Array:
    keep = keep.reshape(keep.shape + (1,) * (frames.ndim - keep.ndim))
    return jnp.where(keep, frames, jnp.zeros((), frames.dtype))


class LSTMCore(nn.Module):
    """An LSTM over time whose state is zeroed at episode starts."""

    size: int
    dtype: Any

    @nn.compact
    def __call__(self, inputs: Array, first: Array, state: State) -> tuple[Array, State]:
        """Outputs ``[T, B, size]`` for inputs ``[T, B, F]``, and the last state."""
        gates = nn.Dense(4 * self.size, dtype=self.dtype, name="input")(inputs)
        kernel = self.param("recurrent", _recurrent_kernel, (self.size, 4 * self.size))
        outputs, state = lstm(gates.astype(jnp.float32), kernel.astype(self.dtype), first, state)
        return outputs.astype(self.dtype), state


def _recurrent_kernel(key: Array, shape: tuple[int, int]) -> Array:
    """Orthogonal for each of the four gates."""
    size = shape[0]
    keys = jax.random.split(key, 4)
    kernels = [nn.initializers.orthogonal()(key, (size, size), jnp.float32) for key in keys]
    return jnp.concatenate(kernels, axis=1)


class MLP(nn.Module):
    """Dense layers over all observed arrays, flattened and joined."""

    sizes: tuple[int, ...]
    dtype: Any

    @nn.compact
    def __call__(self, observation: ArrayTree) -> Array:
        """``[N, ...]`` arrays to features ``[N, F]``."""
        leaves = [_flatten(leaf) for leaf in jax.tree.leaves(observation)]
        return _dense(jnp.concatenate(leaves, axis=-1), self.sizes, self.dtype)


class ConvTorso(nn.Module):
    """Convolutions and dense layers, each followed by a ReLU.

    Weights start with the variance of He et al. 2015, eq. 10. Most pixels of a game never change;
    with half that variance in every layer, the features of Pong's frames differ from one another a
    third as much: a standard deviation of 0.006 instead of 0.016, where their size is 0.2 and 0.5.
    """

    convolutions: tuple[tuple[int, int, int], ...]
    """Channels, kernel size and stride of each."""
    sizes: tuple[int, ...]
    dtype: Any
    data_format: DataFormat
    normalize: bool

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Images ``[N, H, W]``, or with channels as ``data_format`` says, to ``[N, F]``."""
        x, data_format = _channels(images), self.data_format
        for channels, size, stride in self.convolutions:
            layer = (channels, size, stride, "VALID", self.dtype, _HE)
            x = nn.relu(Conv(*layer, data_format, self.normalize)(x))
            data_format = "NHWC"
        return _dense(x.reshape(x.shape[0], -1), self.sizes, self.dtype, _HE)


class ResNetTorso(nn.Module):
    """Residual network of 15 convolutions (Espeholt et al. 2018, figure 3, right)."""

    sizes: tuple[int, ...]
    dtype: Any
    data_format: DataFormat
    normalize: bool

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Images ``[N, H, W]``, or with channels as ``data_format`` says, to ``[N, F]``."""
        x, data_format = _channels(images), self.data_format
        for features in (16, 32, 32):
            x = Conv(features, 3, 1, "SAME", self.dtype, _LECUN, data_format, self.normalize)(x)
            x, data_format = max_pool(x, 3, 2), "NHWC"
            for _ in range(2):
                y = Conv(features, 3, 1, "SAME", self.dtype)(nn.relu(x))
                x = x + Conv(features, 3, 1, "SAME", self.dtype)(nn.relu(y))
        return _dense(nn.relu(x).reshape(x.shape[0], -1), self.sizes, self.dtype)


class Conv(nn.Module):
    """A convolution over images, in the fastest form of each platform.

    uint8 pixels are read as 0 to 1, or where ``normalize`` with mean 0 and variance 1 over the
    image and its channels.
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
        """``[N, H, W, C]``, or as ``data_format`` says, to ``[N, H', W', features]``."""
        channels = x.shape[self.data_format.index("C")]
        shape = (self.size, self.size, channels, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        convolve = partial(
            conv2d, strides=self.stride, padding=self.padding, data_format=self.data_format
        )
        if x.dtype != jnp.uint8:
            return convolve(x.astype(self.dtype), kernel.astype(self.dtype), bias)
        kernel = (kernel / 255).astype(self.dtype)  # Cheaper than to divide the pixels.
        if not self.normalize:
            return convolve(x, kernel, bias)
        mean, deviation = _moments(x)
        scale = (255 / deviation)[:, None, None, None]
        return (convolve(x, kernel, offset=mean) * scale + bias).astype(self.dtype)


def _torso(config: NetworkConfig, dtype: Any) -> nn.Module:
    if config.torso == "mlp":
        return MLP(config.hidden_sizes, dtype, name="torso")
    # Stacked frames are planes; an image of several channels has them pixel by pixel.
    data_format: DataFormat = "NCHW" if config.frame_stack > 1 else "NHWC"
    kinds: dict[str, Callable[..., nn.Module]] = {
        "small": partial(ConvTorso, SMALL),
        "shallow": partial(ConvTorso, SHALLOW),
        "deep": ResNetTorso,
    }
    normalize = config.pixels == "normalized"
    return kinds[config.torso](config.hidden_sizes, dtype, data_format, normalize, name="torso")


def _moments(images: Array) -> tuple[Array, Array]:
    """Mean and standard deviation ``[N]`` of each image, with all its channels."""
    x = images.astype(jnp.float32)
    deviation = jnp.maximum(jnp.std(x, (1, 2, 3)), _LEAST_DEVIATION)
    return jnp.mean(x, (1, 2, 3)), deviation


def _dense(
    x: Array, sizes: tuple[int, ...], dtype: Any, kernel_init: nn.initializers.Initializer = _LECUN
) -> Array:
    for size in sizes:
        x = nn.relu(nn.Dense(size, dtype=dtype, kernel_init=kernel_init)(x))
    return x


def _channels(images: Array) -> Array:
    return images[..., None] if images.ndim == 3 else images


def _flatten(leaf: Array) -> Array:
    """Floats as they are; integers, of unknown scale, by symlog (Hafner et al. 2023)."""
    x = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        x = jnp.sign(x) * jnp.log1p(jnp.abs(x))
    return x


def _unpack(observation: Any) -> tuple[Any, Any]:
    """Observation and previous action, which is None where the environment does not give it."""
    if isinstance(observation, dict) and set(observation) == {"observation", "action"}:
        return observation["observation"], observation["action"]
    return observation, None


def _core_inputs(features: Array, reward: Array, action: Any, spec: EnvSpec) -> Array:
    """Features with the last reward, clipped to [-1, 1], and the last action."""
    parts = [features, jnp.clip(reward, -1, 1)[..., None].astype(features.dtype)]
    if action is not None:
        if isinstance(spec.action, BoxSpec):
            action = action.reshape(*action.shape[:2], -1)
        else:
            action = jax.nn.one_hot(action, spec.action.num_actions)
        parts.append(action.astype(features.dtype))
    return lax.concatenate(parts, dimension=features.ndim - 1)
