"""Environments with one fault each, all of them around Catch: its episodes are of nine steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sebulba import envs
from sebulba.types import EnvSpec, Timestep

STEP = 17
"""The step in which most faults are, in the middle of an unroll and of an episode."""
ENV = 2
"""The environment that has them."""


class Around:
    """Catch. A subclass changes ``step`` or ``reset``, or what both return, in ``spoiled``.

    Attributes:
      steps: calls of ``step`` so far, the present one included.
    """

    def __init__(self, num_envs: int, seed: int) -> None:
        self.env = envs.Catch(num_envs, seed)
        self.steps = 0

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self) -> Timestep:
        return self.spoiled(self.env.reset())

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self.steps += 1
        return self.spoiled(self.env.step(action))

    def spoiled(self, timestep: Timestep) -> Timestep:
        return timestep

    def close(self) -> None:
        self.env.close()


def spoiled_by(spoil: Callable[[Timestep], Timestep], step: int = STEP) -> type[Around]:
    """Environments of which ``spoil`` changes the timestep of one step; 0 is the reset."""

    class Spoiled(Around):
        def spoiled(self, timestep: Timestep) -> Timestep:
            return spoil(timestep) if self.steps == step else timestep

    return Spoiled


def with_value(field: str, value: float, step: int = STEP) -> type[Around]:
    """Environments one of which has ``value`` in ``field``, once."""

    def spoil(timestep: Timestep) -> Timestep:
        array = getattr(timestep, field).copy()
        array[ENV] = value
        return timestep._replace(**{field: array})

    return spoiled_by(spoil, step)


class SameStep(Around):
    """Resets in the step that ends an episode, as SAME_STEP of Gymnasium's vector environments."""

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        last = super().step(action)
        if last.discount.all():
            return last
        first = self.env.step(action)
        return first._replace(reward=last.reward, discount=last.discount)


class SameStepAfterTruncation(SameStep):
    """The same, where every episode counts as truncated: only the reward betrays it."""

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        timestep = super().step(action)
        return timestep._replace(discount=np.ones_like(timestep.discount))


class AlwaysFirst(Around):
    """Every timestep is the first of an episode, which never has a step."""

    def spoiled(self, timestep: Timestep) -> Timestep:
        ones = np.ones_like(timestep.discount)
        return timestep._replace(reward=0 * ones, discount=ones, first=ones.astype(bool))


class OneStepEpisodes(AlwaysFirst):
    """A bandit that resets in the same step: each reward comes with the next first timestep."""

    def spoiled(self, timestep: Timestep) -> Timestep:
        timestep = super().spoiled(timestep)
        return timestep._replace(reward=timestep.reward + (self.steps > 0))


class NeverFirst(Around):
    """Starts new episodes, but never says so after the first one."""

    def spoiled(self, timestep: Timestep) -> Timestep:
        return timestep._replace(first=timestep.first & (self.steps == 0))


class NeverEnding(NeverFirst):
    """Says neither that an episode ends nor that one starts."""

    def spoiled(self, timestep: Timestep) -> Timestep:
        timestep = super().spoiled(timestep)
        return timestep._replace(discount=np.ones_like(timestep.discount))


class NeverTerminating(Around):
    """Starts new episodes without an end of the old ones by a discount of 0: a truncation."""

    def spoiled(self, timestep: Timestep) -> Timestep:
        return timestep._replace(discount=np.ones_like(timestep.discount))


class Raising(Around):
    """Raises an exception in one step."""

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        if self.steps == STEP - 1:
            raise OSError("the simulator has crashed")
        return super().step(action)


class ReusingItsBuffers(Around):
    """Returns the very same arrays in each step, and writes garbage to them before the next."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self._buffers: Any = None

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        jax.tree.map(lambda buffer: buffer.fill(1), self._buffers)
        return super().step(action)

    def spoiled(self, timestep: Timestep) -> Timestep:
        if self._buffers is None:
            self._buffers = jax.tree.map(aligned, timestep)
        jax.tree.map(np.copyto, self._buffers, timestep)
        return self._buffers  # type: ignore[no-any-return]


class Float64(Around):
    """Says and returns float64, as most environments of Gymnasium do."""

    @property
    def spec(self) -> EnvSpec:
        spec = super().spec
        array = spec.observation
        return spec._replace(observation=type(array)(array.shape, np.dtype(np.float64)))

    def spoiled(self, timestep: Timestep) -> Timestep:
        wide = (np.asarray(x, np.float64) for x in timestep[:3])
        return Timestep(*wide, timestep.first)


class OneTooFew(Around):
    """One environment less than asked for, unless it is only asked for its spec."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(max(1, num_envs - 1), seed)


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy at an address that 64 divides, as JAX on a CPU wants to read it without copying."""
    room = np.zeros(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def with_spec(**changes: Any) -> type[Around]:
    """Environments that say other things in their spec than Catch."""

    class Telling(Around):
        @property
        def spec(self) -> EnvSpec:
            return super().spec._replace(**changes)

    return Telling
