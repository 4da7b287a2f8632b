"""The reference networks, in flax.

Every network maps timesteps ``[T, B, ...]`` and a recurrent state ``[B, ...]`` to outputs
``[T, B, ...]`` and the next state. The environment returns single frames: the state holds the last
frames for stacking, as well as the state of the LSTM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sebulba.agents import normalization
from sebulba.agents.torsos import encode, is_image
from sebulba.config import NetworkConfig
from sebulba.envs.previous_action import has_action, without_action
from sebulba.ops.lstm import lstm
from sebulba.types import ActionSpec, ArrayTree, BoxSpec, DiscreteSpec, EnvSpec, State, Timestep

Array = jax.Array

MOMENTS = "observations"
"""Where the parameters have the moments by which observations are normalized."""


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
        observation, action = timestep.observation, None
        if has_action(self.spec):
            observation, action = observation["observation"], observation["last_action"]
        if self.config.normalize_observations:
            shapes = [array.shape for array in numbers(without_action(self.spec))]
            moments = self.param(MOMENTS, lambda _: normalization.initial(shapes))
            observation = _normalized(lax.stop_gradient(moments), observation)
        if self.config.frame_stack > 1:
            observation, state["frames"] = stack_frames(
                observation, timestep.first, state["frames"]
            )
        # The torso has no memory, so it takes all T * B observations as one batch.
        lead = timestep.first.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
        features = encode(self.config, dtype, flat).reshape(*lead, -1)
        if self.config.core == "lstm":
            inputs = _core_inputs(features, timestep.reward, action, self.spec)
            features, state["lstm"] = LSTMCore(self.config.core_size, dtype)(
                inputs, timestep.first, state["lstm"]
            )
        # Policies and values are float32 whatever the dtype: ratios and TD errors need the digits.
        heads, features = self.heads(), features.astype(jnp.float32)
        if not self.config.separate_value:
            return heads(features), state
        of_value = encode(self.config, dtype, flat, "value_torso").reshape(*lead, -1)
        return heads(features, of_value.astype(jnp.float32)), state


def numbers(observation: ArrayTree, num_axes: int = 0) -> list[Any]:
    """The arrays of an observation, or specs of them, that are normalized: floats, but no images.

    Args:
      observation: as the environment gives it, without the last action.
      num_axes: axes before those of one observation.
    """
    leaves = jax.tree.leaves(observation)
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
        frame = without_action(spec)
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
