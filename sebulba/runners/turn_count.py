"""What all hosts know of a turn: how many steps it took, and whether one was asked to stop."""

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
      steps: real agent steps: not the ignored auto-reset ones.
      interrupts: above 0 where a host was asked to stop.
    """

    steps: jax.Array
    interrupts: jax.Array


def count_turn(unrolls: Sequence[Unroll], interrupted: bool, topology: Topology) -> TurnCount:
    """Add up over all hosts; ``interrupted`` is this host's own."""
    firsts = [
        assemble([shard.timestep.first for shard in unroll.shards], 1, topology)
        for unroll in unrolls
    ]
    flag = np.full(1, interrupted, np.int32)
    flags = [jax.device_put(flag, device) for device in topology.learners]
    count: TurnCount = _count(firsts, assemble(flags, 0, topology))
    return count


@jax.jit
def _count(firsts: Sequence[jax.Array], flags: jax.Array) -> TurnCount:
    steps = sum((jnp.sum(~first[1:], dtype=jnp.int32) for first in firsts), jnp.int32(0))
    return TurnCount(steps, jnp.sum(flags))
