"""What all hosts know of a turn, against sums done by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from unrolls import unroll_of

from sebulba.devices.topology import Topology
from sebulba.runners.turn_count import count_turn
from sebulba.types import ActorOutput, Timestep, Trajectory

T, B = 5, 8


def trajectory(first: np.ndarray) -> Trajectory:
    numbers = np.zeros(first.shape, np.float32)
    timestep = Timestep(numbers, numbers, numbers, first)
    return Trajectory(timestep, ActorOutput(numbers[1:], ()), ())


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_steps_are_the_real_ones(learners: int) -> None:
    """The step from the end of an episode to the start of the next is none."""
    topology = Topology.split(1, jax.devices()[: learners + (learners > 1)])
    firsts = np.random.default_rng(0).random((2, T + 1, B)) < 0.4
    unrolls = [unroll_of(trajectory(first), topology) for first in firsts]
    for interrupted in (False, True):
        steps, interrupts = count_turn(unrolls, interrupted, topology)
        assert int(steps) == int((~firsts[:, 1:]).sum()) < 2 * T * B
        assert steps.dtype == np.int32
        assert bool(interrupts) == interrupted
