"""What the tests of the replay share: random unrolls, and a small replay to put them in."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np

from sebulba import ArraySpec, DiscreteSpec, EnvSpec, NetworkConfig, QAgent, ReplayConfig
from sebulba.learners.replay.host import HostReplay
from sebulba.learners.replay.storage import (
    Block,
    DeviceStorage,
    Geometry,
    HostStorage,
    block_shapes,
)
from sebulba.types import ActorOutput, Timestep, Trajectory, Unroll

T, B = 3, 2
STORAGES = {"host": HostStorage, "device": DeviceStorage}
GEOMETRY = Geometry(lanes=3, slots=5, num_envs=B, span=2)


def random_trajectory(rng: np.random.Generator, num_envs: int = B) -> Trajectory:
    shape = (T + 1, num_envs)
    observation = {
        "observation": rng.integers(0, 256, (*shape, 2, 3)).astype(np.uint8),
        "last_action": rng.integers(0, 4, shape).astype(np.int32),
    }
    reward, discount = rng.normal(size=(2, *shape)).astype(np.float32)
    timestep = Timestep(observation, reward, discount, rng.random(shape) < 0.2)
    actor = ActorOutput(rng.integers(0, 4, (T, num_envs)).astype(np.int32), extras=reward[1:])
    state = {"lstm": rng.normal(size=(2, num_envs, 5)).astype(np.float32)[0]}
    return Trajectory(timestep, actor, state)


def shapes_of(trajectory: Trajectory) -> Block:
    def batch_major(leaf: np.ndarray) -> Any:
        return jax.ShapeDtypeStruct((B, T, *leaf.shape[2:]), leaf.dtype)

    return Block(
        jax.tree.map(batch_major, trajectory.timestep),
        batch_major(trajectory.actor.action),
        jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), trajectory.initial_state
        ),
    )


def mean_priority(errors: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.nanmean(errors, axis=0)
    return result


OBSERVATION = {
    "observation": ArraySpec((2, 3), np.dtype(np.uint8)),
    "last_action": ArraySpec((), np.dtype(np.int32)),
}
SPEC = EnvSpec(OBSERVATION, DiscreteSpec(4), B)
NETWORK = NetworkConfig(hidden_sizes=(4,), core="lstm", core_size=5)
LEARNERS, BATCH_SIZE = 2, 8
CAPACITY = 4 * B * 6


def make_replay(
    kind: Literal["host", "device"] = "host",
    *,
    learners: int = LEARNERS,
    lanes: int = 2,
    num_envs: int = B,
    unroll_length: int = T,
    span: int = 2,
    agent: Any = None,
    **changes: Any,
) -> HostReplay:
    """One that is not allocated; ``changes`` are of its ``ReplayConfig``."""
    config = ReplayConfig(**{"storage": kind, "capacity": CAPACITY, "min_size": 4, **changes})
    return HostReplay(
        config,
        # Nothing but the agent's state is used of it.
        block_shapes(agent or QAgent(NETWORK, SPEC), SPEC, num_envs, unroll_length),
        lanes=lanes,
        span=span,
        batch_size=BATCH_SIZE,
        seed=0,
        devices=jax.devices()[1 : learners + 1],
    )


def new_replay(*args: Any, **kwargs: Any) -> HostReplay:
    """``make_replay``, allocated."""
    replay = make_replay(*args, **kwargs)
    replay.allocate()
    return replay


class Feed:
    """Random unrolls, lane after lane."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._lane = 0

    def into(self, replay: HostReplay, count: int = 1) -> int:
        """Insert ``count`` unrolls; returns the updates that became due."""
        return sum(replay.insert([self.unroll()], self.errors, mean_priority) for _ in range(count))

    def unroll(self) -> Unroll:
        self._lane = (self._lane + 1) % 2
        trajectories = [random_trajectory(self._rng) for _ in range(LEARNERS)]
        state = {"lstm": (np.float32(self._rng.normal(size=(B, 5))),) * 2}
        return Unroll(self._lane, [t._replace(initial_state=state) for t in trajectories])

    def errors(self, trajectory: Trajectory) -> Any:
        return self._rng.random((T, B)).astype(np.float32)


def everything(replay: HostReplay) -> list[np.ndarray]:
    """Copies of all that a replay holds, in a fixed order."""
    counts = [replay.inserted, replay.learned_from, replay.trained, replay._samples]
    parts: list[Any] = [np.array(counts)]
    for shard in replay._shards:
        state = shard.state()
        parts += [np.array(state[name]) for name in sorted(state)]
        for place in shard.used():
            parts += [np.array(block) for block in shard.storage.blocks(*place)]
    return parts


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
