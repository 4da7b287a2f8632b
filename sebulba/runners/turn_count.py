"""Numbers of a turn that all hosts share: its steps, and whether a host was asked to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.devices.topology import Topology
from sebulba.learners.sharding import assemble
from sebulba.types import Unroll


class TurnCount(NamedTuple):
    """Sums over all hosts, int32 ``[]``.

    Attributes:
      steps: agent steps, without auto-resets.
      interrupts: above 0 if any host was asked to stop.
    """

    steps: jax.Array
    interrupts: jax.Array


def count_turn(unrolls: Sequence[Unroll], interrupted: bool, topology: Topology) -> TurnCount:
    """Sums over all hosts, still being computed on the learner devices.

    Every host must call it in every turn, since it communicates.

    Args:
      unrolls: those that this host took in this turn.
      interrupted: whether this host was asked to stop.
      topology: the learner devices.
    """
    firsts = [
        assemble([shard.timestep.first for shard in unroll.shards], 1, topology)
        for unroll in unrolls
    ]
    # Every learner device holds its host's flag as one element of a global array.
    flag = np.full(1, interrupted, np.int32)
    flags = [jax.device_put(flag, device) for device in topology.learners]
    return _count(firsts, assemble(flags, 0, topology))


@jax.jit
def _count(firsts: Sequence[jax.Array], flags: jax.Array) -> TurnCount:
    # The timestep after action t is t + 1. If it is ``first``, the action only reset the episode.
    steps = sum((jnp.sum(~first[1:], dtype=jnp.int32) for first in firsts), jnp.int32(0))
    return TurnCount(steps, jnp.sum(flags))
