"""What the tests of the replay share: random unrolls, and a small replay to put them in."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from sebulba.agents.reference import QAgent
from sebulba.config import NetworkConfig, R2D2Config, ReplayConfig
from sebulba.devices.topology import Topology
from sebulba.learners import Delivery
from sebulba.learners.replay.host import HostReplay
from sebulba.learners.replay.storage import Block, DeviceStorage, Geometry, HostStorage
from sebulba.types import ActorOutput, ArraySpec, DiscreteSpec, EnvSpec, Timestep, Trajectory

T, B = 3, 2
STORAGES = {"host": HostStorage, "device": DeviceStorage}
GEOMETRY = Geometry(lanes=3, slots=5, num_envs=B, span=2)


def random_trajectory(rng: np.random.Generator, num_envs: int = B) -> Trajectory:
    shape = (T + 1, num_envs)
    observation = {
        "observation": rng.integers(0, 256, (*shape, 2, 3)).astype(np.uint8),
        "action": rng.integers(0, 4, shape).astype(np.int32),
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
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _state(trajectory)),
    )


def _state(trajectory: Trajectory) -> Any:
    return trajectory.initial_state


def mean_priority(errors: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.nanmean(errors, axis=0)
    return result


SPEC = EnvSpec(ArraySpec((2, 3), np.dtype(np.uint8)), DiscreteSpec(4), B)
SPEC = SPEC._replace(
    observation={"observation": SPEC.observation, "action": ArraySpec((), np.dtype(np.int32))}
)
CONFIG = R2D2Config(
    envs_per_actor=2 * B,
    batch_size=2 * B,
    actors_per_device=2,
    unroll_length=T,
    sequence_length=2 * T,
    burn_in=T,
    batch_size=8,
    network=NetworkConfig(hidden_sizes=(4,), core="lstm", core_size=5),
    replay=ReplayConfig(capacity=4 * B * 6, min_size=4),
)


def new_replay(kind: str = "host", num_devices: int = 3, **changes: Any) -> HostReplay:
    """Two learner devices by default; nothing but the agent's state is used of it."""
    replay = dataclasses.replace(CONFIG.replay, placement=kind, **changes.pop("replay", {}))
    config = dataclasses.replace(CONFIG, replay=replay, **changes)
    topology = Topology.split(1, jax.devices()[:num_devices])
    return HostReplay(config, QAgent(config.network, SPEC), SPEC, topology)


class Feed:
    """Random deliveries, lane after lane."""

    def __init__(self, seed: int, num_learners: int = 2) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_learners = num_learners
        self._lane = 0

    def into(self, replay: HostReplay, count: int = 1) -> int:
        """Insert ``count`` unrolls; returns the updates that became due."""
        return sum(
            replay.insert([self.delivery()], self._errors, mean_priority) for _ in range(count)
        )

    def delivery(self) -> Delivery:
        self._lane = (self._lane + 1) % 2
        trajectories = [random_trajectory(self._rng) for _ in range(self._num_learners)]
        state = {"lstm": (np.float32(self._rng.normal(size=(B, 5))),) * 2}
        return Unroll(self._lane, [t._replace(initial_state=state) for t in trajectories])

    def _errors(self, trajectory: Trajectory) -> Any:
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
