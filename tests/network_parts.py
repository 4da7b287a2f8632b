"""What the tests of networks share: specs, random timesteps, and stacks made by a slow loop."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from unrolls import random_params

from sebulba import NetworkConfig, PolicyAgent
from sebulba.agents import distributions
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep

T, B = 9, 3
FLOAT = np.dtype(np.float32)
BYTE = np.dtype(np.uint8)


def spec(*shape: int, dtype: Any = FLOAT, action: Any = None) -> EnvSpec:
    return EnvSpec(ArraySpec(shape, dtype), action or DiscreteSpec(4), B)


def with_action(spec: EnvSpec) -> EnvSpec:
    """What ``envs.PreviousAction`` makes of a spec."""
    if isinstance(spec.action, DiscreteSpec):
        action = ArraySpec((), np.dtype(np.int32))
    else:
        action = ArraySpec(spec.action.low.shape, FLOAT)
    return spec._replace(observation={"observation": spec.observation, "last_action": action})


def make_agent(spec: EnvSpec, **network: Any) -> PolicyAgent:
    network = {"hidden_sizes": (16,), "core_size": 8, **network}
    return PolicyAgent(NetworkConfig(**network), spec, distributions.make(spec.action))


def timesteps(spec: EnvSpec, seed: int = 0, length: int = T) -> Timestep:
    """Random timesteps ``[T, B, ...]`` with several episodes in each column."""
    rng = np.random.default_rng(seed)

    def numbers(array: ArraySpec) -> Any:
        shape = (length, B, *array.shape)
        if np.issubdtype(array.dtype, np.integer):
            return rng.integers(0, 4, shape).astype(array.dtype)
        return rng.normal(size=shape).astype(array.dtype)

    observation = jax.tree.map(numbers, spec.observation)
    reward = rng.normal(size=(length, B)).astype(np.float32)
    first = rng.random((length, B)) < 0.3
    return Timestep(observation, reward, np.ones((length, B), np.float32), first)


def grown(agent: PolicyAgent, gain: float = 2.0) -> Any:
    """Parameters larger than fresh ones, so that a wrong input shows in the policy."""
    return random_params(agent, gain=gain)


def close(one: Any, other: Any, atol: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), one, other)


def slow_stacks(frames: Any, first: Any, depth: int) -> np.ndarray[Any, Any]:
    """Look back from each step until the stack is full or the episode began."""
    stacks = np.zeros((*frames.shape, depth), frames.dtype)
    for t, b in np.ndindex(first.shape):
        for back in range(depth):
            if back > t:
                break
            stacks[t, b, ..., depth - 1 - back] = frames[t - back, b]
            if first[t - back, b]:
                break
    return stacks


IMAGE = spec(36, 40, dtype=BYTE)
SMALLEST = spec(20, 22, dtype=BYTE)
"""What two convolutions without padding leave a pixel of."""
