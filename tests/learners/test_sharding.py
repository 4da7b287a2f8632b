"""Unrolls are cut for the learner devices, and put together there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba import Topology
from sebulba.inference.program import cut
from sebulba.learners import TRAJECTORY_AXES, assemble, concatenate
from sebulba.types import (
    ActorOutput,
    Timestep,
    Trajectory,
)

T = 5


def trajectory(batch: int = 8) -> Trajectory:
    """Every element is a number of its own."""

    def numbers(*shape: int) -> jax.Array:
        return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)

    return Trajectory(
        Timestep({"a": numbers(T + 1, batch, 3)}, *(numbers(T + 1, batch) for _ in range(3))),
        ActorOutput(numbers(T, batch), (numbers(T, batch, 2),)),
        (numbers(batch, 6), numbers(batch)),
    )


def check_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_cut_concatenate_and_assemble_round_trip(learners: int) -> None:
    original = trajectory()
    shards = cut(original, learners)
    assert len(shards) == learners
    check_equal(concatenate(shards), original)
    topology = Topology.split(1, jax.devices()[: learners + 1])
    placed = [jax.device_put(s, d) for s, d in zip(shards, topology.learners, strict=True)]
    joined = assemble(placed, TRAJECTORY_AXES, topology)
    check_equal(joined, original)
    for leaf, axis in ((joined.timestep.first, 1), (joined.initial_state[0], 0)):
        assert len(leaf.addressable_shards) == learners
        assert leaf.sharding.shard_shape(leaf.shape)[axis] == 8 // learners
    # Nothing is copied.
    joined_at = [s.data.unsafe_buffer_pointer() for s in joined.actor.action.addressable_shards]
    assert joined_at == [shard.actor.action.unsafe_buffer_pointer() for shard in placed]
