"""What all hosts know of a turn, against sums done by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from sebulba.devices.topology import Topology
from sebulba.inference.program import cut
from sebulba.runners.turn_count import count_turn
from sebulba.types import ActorOutput, Timestep, Trajectory, Unroll

T, B = 5, 8


def unroll_of(first: np.ndarray, topology: Topology) -> Unroll:
    numbers = np.zeros(first.shape, np.float32)
    trajectory = Trajectory(
        Timestep(numbers, numbers, numbers, first), ActorOutput(numbers[1:], ()), ()
    )
    shards = zip(cut(trajectory, len(topology.learners)), topology.learners, strict=True)
    return Unroll(0, [jax.device_put(shard, device) for shard, device in shards])


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_steps_are_the_real_ones(learners: int) -> None:
    """The step from the end of an episode to the start of the next is none."""
    topology = Topology.split(1, jax.devices()[: learners + (learners > 1)])
    firsts = np.random.default_rng(0).random((2, T + 1, B)) < 0.4
    unrolls = [unroll_of(first, topology) for first in firsts]
    for interrupted in (False, True):
        steps, interrupts = count_turn(unrolls, interrupted, topology)
        assert int(steps) == int((~firsts[:, 1:]).sum()) < 2 * T * B
        assert steps.dtype == np.int32
        assert bool(interrupts) == interrupted
