"""Unrolls as actors hand them over, and parameters for networks that nobody trains."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import jax
import numpy as np

from sebulba.devices.topology import Topology
from sebulba.learners import TRAJECTORY_AXES
from sebulba.types import Agent, ArrayTree, Trajectory, Unroll


def shards_of(trajectory: Trajectory, count: int) -> list[Trajectory]:
    """Equal shares of B, in NumPy."""

    def share(number: int, axis: int, tree: ArrayTree) -> Any:
        return jax.tree.map(lambda leaf: np.split(leaf, count, axis)[number], tree)

    return [jax.tree.map(partial(share, i), TRAJECTORY_AXES, trajectory) for i in range(count)]


def unroll_of(trajectory: Trajectory, topology: Topology) -> Unroll:
    """That of actor 0, on the learner devices."""
    shards = zip(shards_of(trajectory, len(topology.learners)), topology.learners, strict=True)
    return Unroll(0, [jax.device_put(shard, device) for shard, device in shards])


def random_params(agent: Agent, seed: int = 0, gain: float = 1.0) -> Any:
    """Parameters as large as fresh ones, times ``gain``, in NumPy: ``init`` takes long to compile.

    They are larger in the last layers, which start small.
    """
    shapes = jax.eval_shape(agent.init, jax.random.key(0))

    def numbers(path: Any, leaf: Any) -> Any:
        rng = np.random.default_rng([seed, zlib.crc32(jax.tree_util.keystr(path).encode())])
        fan_in = max(1, np.prod(leaf.shape[:-1]))
        return rng.normal(0, gain / np.sqrt(fan_in), leaf.shape).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(numbers, shapes)
