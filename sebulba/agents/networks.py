"""The reference networks, in flax.

Every network maps timesteps ``[T, B, ...]`` and a recurrent state ``[B, ...]`` to outputs
``[T, B, ...]`` and the next state. The environment returns single frames: the state holds the last
frames for stacking, as well as the state of the LSTM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sebulba.agents import normalization
from sebulba.config import NetworkConfig
from sebulba.ops.convolution import DataFormat, conv2d
from sebulba.ops.lstm import lstm
from sebulba.ops.pooling import max_pool
from sebulba.ops.relu import relu
from sebulba.types import ActionSpec, ArrayTree, BoxSpec, DiscreteSpec, EnvSpec, State, Timestep

Array = jax.Array

SMALL = ((16, 8, 4), (32, 4, 2))
"""Channels, kernel size and stride of each convolution: Mnih et al. 2016, section 5.1; Espeholt et
al. 2018, figure 3, left, without its LSTM."""
SHALLOW = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The same for Mnih et al. 2015, "Human-level control", methods."""

MOMENTS = "observations"
"""Where the parameters have the moments by which observations are normalized."""

_LEAST_DEVIATION = 10
"""The smallest standard deviation, in gray levels, that pixels are divided by.

Frames of twelve Atari games have 8 to 74; a frame of a single color has 0."""

_HE = nn.initializers.he_normal()
_LECUN = nn.initializers.lecun_normal()
_ORTHOGONAL = nn.initializers.orthogonal(math.sqrt(2))


class Network(nn.Module):
    """A torso, an optional LSTM core, and the heads that the caller gives.

    Attributes:
      config: kinds and sizes of the parts.
      spec: the observations and actions of the environment.
      heads: ``heads()`` returns a module that maps features ``[T, B, F]`` to outputs. With
        ``config.separate_value``, it also gets the features for the value.
    """

    config: NetworkConfig
    spec: EnvSpec
    heads: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, timestep: Timestep, state: dict[str, State]) -> tuple[ArrayTree, State]:
        """Return outputs ``[T, B, ...]`` and the last state ``[B, ...]``.

        Args:
          timestep: ``[T, B, ...]``.
          state: the recurrent state before the first timestep, ``[B, ...]``.
        """
        dtype = jnp.dtype(self.config.dtype)
        state = dict(state)  # A copy: the caller's must not change.
        observation, action = _unpack(timestep.observation)
        if self.config.normalize_observations:
            shapes = [array.shape for array in numbers(self.spec.observation)]
            moments = self.param(MOMENTS, lambda _: normalization.initial(shapes))
            observation = _normalized(lax.stop_gradient(moments), observation)
        if self.config.frame_stack > 1:
            observation, state["frames"] = stack_frames(
                observation, timestep.first, state["frames"]
            )
        # The torso has no memory, so it takes all T * B observations as one batch.
        lead = timestep.first.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
        features = _encode(self.config, dtype, flat).reshape(*lead, -1)
        if self.config.core == "lstm":
            inputs = _core_inputs(features, timestep.reward, action, self.spec)
            features, state["lstm"] = LSTMCore(self.config.core_size, dtype)(
                inputs, timestep.first, state["lstm"]
            )
        # Policies and values are float32 whatever the dtype: ratios and TD errors need the digits.
        heads, features = self.heads(), features.astype(jnp.float32)
        if not self.config.separate_value:
            return heads(features), state
        of_value = _encode(self.config, dtype, flat, "value_torso").reshape(*lead, -1)
        return heads(features, of_value.astype(jnp.float32)), state


def numbers(observation: ArrayTree, num_axes: int = 0) -> list[Any]:
    """The arrays of an observation, or specs of them, that are normalized: floats, but no images.

    Args:
      observation: as the environment gives it, with the last action or without.
      num_axes: axes before those of one observation.
    """
    leaves = jax.tree.leaves(_unpack(observation)[0])
    return [leaf for leaf in leaves if _is_number(leaf, num_axes)]


def _is_number(array: Any, num_axes: int) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating) and not is_image(array.shape[num_axes:])


def _normalized(moments: normalization.Moments, observation: ArrayTree) -> ArrayTree:
    """An observation ``[T, B, ...]`` in which numbers are normalized."""
    new = iter(normalization.normalize(moments, numbers(observation, 2)))
    return jax.tree.map(lambda leaf: next(new) if _is_number(leaf, 2) else leaf, observation)


def initial_state(config: NetworkConfig, spec: EnvSpec, batch_size: int) -> dict[str, State]:
    """Return the state of ``Network`` at the start of an episode: zeros ``[B, ...]``."""
    state: dict[str, State] = {}
    if config.frame_stack > 1:
        # The newest frame of a stack is in the observation, so the state has one frame less.
        frame, _ = _unpack(spec.observation)
        is_normalized = config.normalize_observations and _is_number(frame, 0)
        dtype = jnp.dtype(jnp.float32) if is_normalized else frame.dtype
        state["frames"] = jnp.zeros((batch_size, config.frame_stack - 1, *frame.shape), dtype)
    if config.core == "lstm":
        zeros = jnp.zeros((batch_size, config.core_size), jnp.float32)
        state["lstm"] = (zeros, zeros)
    return state


def stack_frames(frames: Array, first: Array, before: Array) -> tuple[Array, Array]:
    """Stack each frame with the frames before it in the same episode.

    Args:
      frames: ``[T, B, ...]``, one frame for each timestep.
      first: bool ``[T, B]``, whether the timestep is the first of an episode.
      before: ``[B, k-1, ...]``, the frames before ``frames[0]``, oldest first; zeros in place of
        frames of an earlier episode.

    Returns:
      The stacks ``[T, B, k, ...]``, newest frame last, with zeros in place of frames before the
      start of the episode; and the last k - 1 frames ``[B, k-1, ...]``, the next ``before``.
    """
    length, depth = frames.shape[0], before.shape[1]
    if length == 1:  # For each step of acting, and for PPO's steps: one copy in place of several.
        stacks = jnp.concatenate([_where(~first[0], before), jnp.moveaxis(frames, 0, 1)], axis=1)
        return stacks[None], stacks[:, 1:]
    frames = jnp.concatenate([jnp.moveaxis(before, 1, 0), frames])
    # Frames are of the same episode if as many episodes have started by the one as by the other.
    # Those of `before` are in episode 0, which is over at once if first[0].
    episode = jnp.cumsum(first, axis=0, dtype=jnp.int32)
    episode = jnp.concatenate([jnp.zeros((depth, *first.shape[1:]), jnp.int32), episode])

    def delayed(delay: int) -> Array:
        # Timestep t is at index depth + t of `frames`.
        window = slice(depth - delay, depth - delay + length)
        same = episode[window] == episode[depth:]
        return _where(same, frames[window])

    # Frames stay whole planes: it costs more to interleave them pixel by pixel, channels last.
    stacks = jnp.stack([delayed(delay) for delay in range(depth, -1, -1)], axis=2)
    last = _where(episode[length:] == episode[-1], frames[length:])
    return stacks, jnp.moveaxis(last, 0, 1)


def _where(keep: Array, frames: Array) -> Array:
    """Return ``frames`` where ``keep``, of their first axes, and zeros elsewhere."""
    keep = keep.reshape(keep.shape + (1,) * (frames.ndim - keep.ndim))
    return jnp.where(keep, frames, jnp.zeros((), frames.dtype))


class LSTMCore(nn.Module):
    """An LSTM over time, whose state is zeroed at the start of every episode."""

    size: int
    dtype: Any

    @nn.compact
    def __call__(self, inputs: Array, first: Array, state: State) -> tuple[Array, State]:
        """Return outputs ``[T, B, size]`` for inputs ``[T, B, F]``, and the last state."""
        # All inputs at once, outside the loop over time; the one bias of the gates is in here.
        gates = nn.Dense(4 * self.size, dtype=self.dtype, name="input")(inputs)
        kernel = self.param("recurrent", _recurrent_kernel, (self.size, 4 * self.size))
        outputs, state = lstm(gates.astype(jnp.float32), kernel.astype(self.dtype), first, state)
        return outputs.astype(self.dtype), state


def _recurrent_kernel(key: Array, shape: tuple[int, int]) -> Array:
    """Initialize the kernel of each of the four gates as an orthogonal matrix."""
    # Drawn one by one: of the wide [H, 4 H] matrix, only the rows would be orthogonal.
    size = shape[0]
    keys = jax.random.split(key, 4)
    kernels = [nn.initializers.orthogonal()(key, (size, size), jnp.float32) for key in keys]
    return jnp.concatenate(kernels, axis=1)


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


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether an array of an observation is large enough an image for the convolutions.

    Images are ``[H, W]`` or ``[H, W, C]``. The three convolutions of ``SHALLOW`` leave at least one
    pixel of 36 x 36, and none of 35 x 35.
    """
    return len(shape) in (2, 3) and min(shape[:2]) >= 36


def _encode(
    config: NetworkConfig, dtype: Any, observation: ArrayTree, name: str = "torso"
) -> Array:
    """Map arrays ``[N, ...]`` to features ``[N, F]``, with a torso called ``name``.

    Convolutions take each image, and an MLP all that is none. Each has layers of ``hidden_sizes``
    of its own. Their features are concatenated.
    """
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    if config.torso == "mlp":
        return _torso(config, dtype, name)(observation)
    if len(leaves) == 1:
        return _torso(config, dtype, name)(leaves[0][1])
    images = {_name(path): leaf for path, leaf in leaves if is_image(leaf.shape[1:])}
    vectors = [leaf for _, leaf in leaves if not is_image(leaf.shape[1:])]
    features = [_torso(config, dtype, f"{name}_{of}")(leaf) for of, leaf in images.items()]
    if vectors:
        features.append(MLP(config, dtype, name=name)(vectors))
    return jnp.concatenate(features, axis=-1)


def _name(path: Any) -> str:
    return "_".join(str(entry.key) for entry in path)


def _torso(config: NetworkConfig, dtype: Any, name: str = "torso") -> nn.Module:
    kinds: dict[str, Callable[..., nn.Module]] = {
        "mlp": MLP,
        "small": partial(ConvTorso, SMALL),
        "shallow": partial(ConvTorso, SHALLOW),
        "deep": ResNetTorso,
    }
    return kinds[config.torso](config, dtype, name=name)


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


def _unpack(observation: Any) -> tuple[Any, Any]:
    """Return the observation and the previous action, or None if that is not observed."""
    # Flax makes other mappings of the dicts in a module's attributes.
    if isinstance(observation, Mapping) and set(observation) == {"observation", "action"}:
        return observation["observation"], observation["action"]
    return observation, None


def _core_inputs(features: Array, reward: Array, action: Any, spec: EnvSpec) -> Array:
    """Concatenate features, the last reward (clipped to [-1, 1]) and the last action."""
    parts = [features, jnp.clip(reward, -1, 1)[..., None].astype(features.dtype)]
    if action is not None:
        parts.append(_action_features(action, spec.action).astype(features.dtype))
    return lax.concatenate(parts, dimension=features.ndim - 1)


def _action_features(action: Array, spec: ActionSpec) -> Array:
    """Map actions ``[T, B, ...]`` to features ``[T, B, F]``."""
    if isinstance(spec, BoxSpec):
        return action.reshape(*action.shape[:2], -1)
    # The first timestep of an episode has action 0, so it looks like one after action 0.
    if isinstance(spec, DiscreteSpec):
        return jax.nn.one_hot(action, spec.num_actions)
    parts = [jax.nn.one_hot(action[..., i], n) for i, n in enumerate(spec.num_actions)]
    return jnp.concatenate(parts, axis=-1)
