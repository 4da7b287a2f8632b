"""The minibatches of an epoch: from which steps, or trajectories, and in which order."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from sebulba.devices.topology import LEARNER_AXIS, Topology
from sebulba.learners.sharding import spec_of
from sebulba.types import ActorOutput, Agent, ArrayTree, Params, State, Timestep


class Samples(NamedTuple):
    """What is learned from: N sequences of L steps each. Single steps are sequences of one.

    Attributes:
      timestep: ``[L, N, ...]``, at which the actions were chosen.
      actor: ``[L, N, ...]``.
      state: ``[N, ...]``, the recurrent state before each sequence.
      first: bool ``[L, N]``, whether the timestep after the action starts a new episode.
      targets: ``[L, N]``, as ``EpochLearner.targets`` returned them.
    """

    timestep: Timestep
    actor: ActorOutput
    state: State
    first: jax.Array
    targets: ArrayTree


SAMPLE_AXES: Any = Samples(timestep=1, actor=1, state=0, first=1, targets=1)  # type: ignore[arg-type]
"""Where N is in each part of ``Samples``."""


def shuffle(
    topology: Topology,
    count: int,
    seed: int,
    samples: Samples,
    turns: jax.Array,
    epoch: jax.Array,
) -> jax.Array:
    """For each minibatch of one epoch, the sequences that each device takes of its share.

    Each sequence is in one minibatch.

    Args:
      topology: the learner devices of all hosts.
      count: of minibatches; it must divide each device's share.
      seed: of the training.
      samples: whose sequences are counted.
      turns: int32 scalar, of the training before this one.
      epoch: int32 scalar, of this turn.

    Returns:
      Indices into a device's own share, int32 ``[count, N / count]``, divided over the devices
      along the last axis.
    """

    def local(first: jax.Array, turns: jax.Array, epoch: jax.Array) -> jax.Array:
        # From counts alone, so a resumed run needs no key from the checkpoint.
        key = jax.random.key(seed)
        for number in (turns, epoch, lax.axis_index(LEARNER_AXIS)):
            key = jax.random.fold_in(key, number)
        return jax.random.permutation(key, first.shape[1]).reshape(count, -1)

    return jax.shard_map(
        local,
        mesh=topology.mesh,
        in_specs=(spec_of(SAMPLE_AXES.first), PartitionSpec(), PartitionSpec()),
        out_specs=spec_of(1),
        check_vma=False,
    )(samples.first, turns, epoch)


def take(topology: Topology, samples: Samples, indices: jax.Array) -> Samples:
    """The sequences with these indices, each device's of its own share."""
    specs = jax.tree.map(spec_of, SAMPLE_AXES)

    def local(samples: Samples, indices: jax.Array) -> Samples:
        def take_all(axis: int, tree: ArrayTree) -> Any:
            return jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis), tree)

        return jax.tree.map(take_all, SAMPLE_AXES, samples)

    return jax.shard_map(
        local,
        mesh=topology.mesh,
        in_specs=(specs, spec_of(0)),
        out_specs=specs,
        check_vma=False,
    )(samples, indices)


def in_single_steps(samples: Samples, agent: Agent, params: Params) -> Samples:
    """``T * B`` sequences of one step, each with the state before it."""

    # The compiler drops all of the network that the state does not depend on.
    def step(state: State, timestep: Timestep) -> tuple[State, State]:
        one = jax.tree.map(lambda leaf: leaf[None], timestep)
        return agent.unroll(params, one, state)[1], state

    states = samples.state
    if jax.tree.leaves(states):
        _, states = lax.scan(step, samples.state, samples.timestep)

    def flat(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, *leaf.shape[2:])

    whole = jax.tree.map(lambda leaf: flat(leaf)[None], samples._replace(state=()))
    return whole._replace(state=jax.tree.map(flat, states))
