"""Arrays that span the learner devices of all hosts, each device holding its share of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from sebulba.devices.topology import LEARNER_AXIS, Topology
from sebulba.types import ArrayTree, Trajectory

TRAJECTORY_AXES: Any = Trajectory(timestep=1, actor=1, initial_state=0)  # type: ignore[arg-type]
"""The axis of B in each part of a trajectory."""


def spec_of(axis: int) -> PartitionSpec:
    """Divided over the learner devices along ``axis``."""
    return PartitionSpec(*[None] * axis, LEARNER_AXIS)


def assemble(shards: Sequence[ArrayTree], axes: Any, topology: Topology) -> Any:
    """Global arrays from this host's shards, one on each of its learner devices.

    Nothing is copied: the shards become those of arrays that span the learner mesh. ``axes`` is a
    prefix of the shards' tree with the axis of B.
    """

    def join_all(axis: int, *trees: ArrayTree) -> Any:
        sharding = NamedSharding(topology.mesh, spec_of(axis))

        def join(*leaves: jax.Array) -> jax.Array:
            shape = list(leaves[0].shape)
            shape[axis] *= topology.mesh.size
            return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(leaves))

        return jax.tree.map(join, *trees)

    return jax.tree.map(join_all, axes, *shards)


def abstract(shard: ArrayTree, axes: Any, topology: Topology) -> Any:
    """The ``jax.ShapeDtypeStruct`` of what ``assemble`` makes of such shards."""

    def whole_all(axis: int, tree: ArrayTree) -> Any:
        sharding = NamedSharding(topology.mesh, spec_of(axis))

        def whole(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = list(leaf.shape)
            shape[axis] *= topology.mesh.size
            return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, sharding=sharding)

        return jax.tree.map(whole, tree)

    return jax.tree.map(whole_all, axes, shard)


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Join trajectories along B."""

    def join_all(axis: int, *trees: ArrayTree) -> Any:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=axis), *trees)

    if len(trajectories) == 1:
        return trajectories[0]
    joined: Trajectory = jax.tree.map(join_all, TRAJECTORY_AXES, *trajectories)
    return joined


def local_data(array: jax.Array, device: jax.Device) -> jax.Array:
    """The shard of a global array that is on ``device``."""
    data: list[jax.Array] = [s.data for s in array.addressable_shards if s.device == device]
    return data[0]
