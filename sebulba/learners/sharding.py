"""Arrays that span the learner devices of all hosts, each device holding its share of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sebulba.devices.topology import LEARNER_AXIS, Topology
from sebulba.types import ArrayTree, Trajectory

TRAJECTORY_AXES: Any = Trajectory(timestep=1, actor=1, initial_state=0)  # type: ignore[arg-type]
"""The axis of B in each part of a trajectory."""


def spec_of(axis: int) -> PartitionSpec:
    """The sharding of an array that is divided over the learner devices along ``axis``."""
    return PartitionSpec(*[None] * axis, LEARNER_AXIS)


def assemble(shards: Sequence[ArrayTree], axes: Any, topology: Topology) -> Any:
    """Global arrays made of this host's shards and those of all other hosts.

    Nothing is copied or sent: each host only contributes the shards it holds.

    Args:
      shards: one pytree for each learner device of this host, in their order; all of one shape.
      axes: a prefix of their tree, with the axis of B in each part.
      topology: the learner mesh that the result spans.
    """

    # Each leaf of ``axes`` stands for a whole subtree of the shards, to which jax.tree.map passes
    # it; hence a second map inside. The functions below work in the same way.
    def join_all(axis: int, *trees: ArrayTree) -> Any:
        sharding = NamedSharding(topology.mesh, spec_of(axis))

        def join(*leaves: jax.Array) -> jax.Array:
            # The mesh counts the learner devices of all hosts, ``leaves`` only those of this one.
            shape = list(leaves[0].shape)
            shape[axis] *= topology.mesh.size
            return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(leaves))

        return jax.tree.map(join, *trees)

    return jax.tree.map(join_all, axes, *shards)


def abstract(shard: ArrayTree, axes: Any, topology: Topology) -> Any:
    """What ``assemble`` makes of shards like ``shard``, as ``jax.ShapeDtypeStruct``."""

    def whole_all(axis: int, tree: ArrayTree) -> Any:
        sharding = NamedSharding(topology.mesh, spec_of(axis))

        def whole(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = list(leaf.shape)
            shape[axis] *= topology.mesh.size
            return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, sharding=sharding)

        return jax.tree.map(whole, tree)

    return jax.tree.map(whole_all, axes, shard)


def described(tree: ArrayTree, axes: Any, topology: Topology) -> Any:
    """Global arrays of these shapes as ``jax.ShapeDtypeStruct``, divided along ``axes``."""

    def divided_all(axis: int, tree: ArrayTree) -> Any:
        sharding = NamedSharding(topology.mesh, spec_of(axis))
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    return jax.tree.map(divided_all, axes, tree)


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Join trajectories along B.

    Meant for one device's shares, inside ``shard_map``. Joining global arrays along the axis that
    is divided would move data between devices.
    """

    def join_all(axis: int, *trees: ArrayTree) -> Any:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=axis), *trees)

    if len(trajectories) == 1:
        return trajectories[0]
    return jax.tree.map(join_all, TRAJECTORY_AXES, *trajectories)


def part_of(tree: ArrayTree, axes: Any, index: jax.Array, count: int) -> Any:
    """Part ``index`` of ``count`` equal ones along B; meant for one device's share, as above.

    Args:
      tree: of one device.
      axes: a prefix of it, with the axis of B in each part.
      index: int32 ``[]``.
      count: must divide B.
    """

    def take_all(axis: int, tree: ArrayTree) -> Any:
        def take(leaf: jax.Array) -> jax.Array:
            size = leaf.shape[axis] // count
            return lax.dynamic_slice_in_dim(leaf, index * size, size, axis=axis)

        return jax.tree.map(take, tree)

    return jax.tree.map(take_all, axes, tree)


def local_data(array: jax.Array, device: jax.Device) -> jax.Array:
    """The shard of a global array that is on ``device``."""
    data: list[jax.Array] = [s.data for s in array.addressable_shards if s.device == device]
    return data[0]
