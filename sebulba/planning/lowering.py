"""The programs of a training run, lowered for devices that this machine need not have."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.devices.topology import Topology
from sebulba.inference import ActorProgram
from sebulba.learners import make_optimizer
from sebulba.learners.base import Upkeep
from sebulba.types import ArrayTree, EnvSpec
from sebulba.validation import ConfigError


class Lowered(NamedTuple):
    """What a run executes again and again, and the memory that the programs do not show.

    Attributes:
      act: ``ActorProgram.step`` of one actor, on the first inference device.
      update: the programs of one update on the learner mesh of all hosts, and how often each runs;
        see ``Learner.lower``.
      carry_bytes: memory of each further actor on an inference device.
      upkeep: what the learner does besides, such as a replay's inserts and samples.
    """

    act: jax.stages.Lowered
    update: list[tuple[jax.stages.Lowered, int]]
    carry_bytes: int
    upkeep: Upkeep


def lower(algorithm: Algorithm[Any], config: Config, spec: EnvSpec, topology: Topology) -> Lowered:
    """Lower the inference step and the update of ``config``; nothing is computed.

    Args:
      algorithm: the one of ``config``.
      config: its sizes must divide over the learners of ``topology``.
      spec: of the environment, with any number of environments.
      topology: roles of the devices, which need not be attached to this machine.

    Raises:
      ConfigError: the algorithm's learner does not say how to lower its update.
    """
    # As in a training run, but every array is a jax.ShapeDtypeStruct placed on those devices.
    spec = spec._replace(num_envs=config.envs_per_actor)
    agent = algorithm.make_agent(config, spec, "training")
    exploration = algorithm.make_exploration(config, config.envs_per_actor)
    program = ActorProgram(
        agent,
        spec,
        config.unroll_length,
        topology.learners,
        exploration and exploration.explore,
    )
    here = SingleDeviceSharding(topology.inference[0])
    key = jax.random.key(0)
    params = _on(here, jax.eval_shape(agent.init, key))
    carry = _on(here, jax.eval_shape(program.start, params, key, np.int32(0)))
    # The buffers are [T+1, B, ...]: without the time axis they are one timestep.
    timestep = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=here),
        carry.timesteps,
    )
    shards, _ = jax.eval_shape(program.finish, carry, timestep)
    epsilons = _on(here, exploration.epsilons(0.0)) if exploration else ()
    # The number of updates is a constant in the schedule: any number costs the same.
    optimizer = make_optimizer(config.optimizer)
    learner = algorithm.make_learner(config, agent, spec, optimizer, topology)
    state = _on(topology.replicated(), jax.eval_shape(learner.init, key))
    try:
        update = learner.lower(state, shards[0])
    except NotImplementedError as error:
        raise ConfigError(
            f"{algorithm.name} cannot be planned ({error}): define the learner's method lower."
        ) from error
    return Lowered(
        act=program.step.lower(params, carry, timestep, epsilons),
        update=update,
        carry_bytes=_nbytes(carry),
        upkeep=learner.upkeep(),
    )


def _on(sharding: Sharding, tree: ArrayTree) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def _nbytes(tree: ArrayTree) -> int:
    return sum(math.prod(leaf.shape) * int(leaf.dtype.itemsize) for leaf in jax.tree.leaves(tree))
