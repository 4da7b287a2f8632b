"""The programs of a training run, lowered for devices that need not be here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from sebulba import algorithms
from sebulba.config import Config, R2D2Config
from sebulba.inference import ActorProgram
from sebulba.learners import R2D2Learner, VTraceLearner, make_optimiser
from sebulba.learners.r2d2 import ReplayBatch
from sebulba.learners.storage import Sequences
from sebulba.topology import LEARNER_AXIS, Topology
from sebulba.types import ArrayTree, EnvSpec, Trajectory


class Lowered(NamedTuple):
    """What a run executes again and again.

    Attributes:
      act: ``ActorProgram.step`` of one actor, on the first inference device.
      update: the programs of one update on the learner mesh of all hosts, and how often each runs.
      carry_bytes: memory that each further actor of an inference device takes there.
      replay_bytes: memory that the replay takes on each learner device.
      gradient_bytes: size of a gradient.
    """

    act: jax.stages.Lowered
    update: list[tuple[jax.stages.Lowered, int]]
    carry_bytes: int
    replay_bytes: int
    gradient_bytes: int


def lower(config: Config, spec: EnvSpec, topology: Topology) -> Lowered:
    """Lower the inference step and the update of ``config``; nothing is computed.

    Raises:
      ConfigError: the batch does not divide over the learner devices.
    """
    agent = algorithms.make_agent(config, spec)
    exploration = algorithms.make_exploration(config, config.envs_per_actor)
    program = ActorProgram(
        agent,
        spec._replace(num_envs=config.envs_per_actor),
        config.unroll_length,
        len(topology.learners),
        exploration and exploration.explore,
    )
    here = SingleDeviceSharding(topology.inference[0])
    key = jax.random.key(0)
    params = _on(here, jax.eval_shape(agent.init, key))
    carry = _on(here, jax.eval_shape(program.start, params, key, np.int32(0)))
    timestep = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=here),
        carry.timesteps,
    )
    parts, _ = jax.eval_shape(program.finish, carry, timestep)
    epsilons = _on(here, exploration.epsilons) if exploration else ()
    return Lowered(
        act=program.step.lower(params, carry, timestep, epsilons),
        update=_lower_update(config, spec, topology, parts[0]),
        carry_bytes=_nbytes(carry),
        replay_bytes=_replay_bytes(config, topology, parts[0]),
        gradient_bytes=_nbytes(params),
    )


def _lower_update(
    config: Config, spec: EnvSpec, topology: Topology, part: Trajectory
) -> list[tuple[jax.stages.Lowered, int]]:
    optimiser = make_optimiser(config.optimiser, config.total_steps)
    agent = algorithms.make_agent(config, spec)
    learner = algorithms.make_learner(_without_replay(config), agent, spec, optimiser, topology)
    state = _on(topology.replicated(), jax.eval_shape(learner.init, jax.random.key(0)))
    if isinstance(learner, R2D2Learner) and isinstance(config, R2D2Config):
        batch = _global(topology, _replayed(config, topology, part), 0)
        return learner.synchronised.lower(state.train, batch, state.target)
    if isinstance(learner, VTraceLearner):
        whole = Trajectory(
            _global(topology, part.timestep, 1),
            _global(topology, part.actor, 1),
            _global(topology, part.initial_state, 0),
        )
        lanes = config.batch_size // config.envs_per_actor
        return learner.synchronised.lower(state, (whole,) * lanes)
    raise TypeError(f"{type(learner).__name__} has no update that can be lowered")


def _without_replay(config: Config) -> Config:
    """The update does not depend on the replay's size, and this machine may lack the memory."""
    if not isinstance(config, R2D2Config):
        return config
    replay = dataclasses.replace(config.replay, capacity=1, min_size=1, placement="host")
    return dataclasses.replace(config, actors_per_device=1, replay=replay)


def _replayed(config: R2D2Config, topology: Topology, part: Trajectory) -> ReplayBatch:
    """One learner device's share of a batch, as abstract arrays."""
    count = config.sequences_per_update // len(topology.learners)
    length = config.sequence_length

    weights: Any = jax.ShapeDtypeStruct((count,), np.float32)

    def steps(leaf: Any, length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, length, *leaf.shape[2:]), leaf.dtype)

    return ReplayBatch(
        Sequences(
            jax.tree.map(lambda leaf: steps(leaf, length + 1), part.timestep),
            steps(part.actor.action, length),
            jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype),
                part.initial_state,
            ),
        ),
        weights,
    )


def _replay_bytes(config: Config, topology: Topology, part: Trajectory) -> int:
    if not isinstance(config, R2D2Config) or config.replay.placement == "host":
        return 0
    stored = part._replace(actor=part.actor._replace(extras=()))
    envs = part.timestep.first.shape[1]
    return _nbytes(stored) * config.replay.capacity // (int(envs) * len(topology.learners))


def _on(sharding: Sharding, tree: ArrayTree) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def _global(topology: Topology, tree: ArrayTree, axis: int) -> Any:
    """Abstract arrays over all learner devices, from the share of one along ``axis``."""
    sharding = NamedSharding(topology.mesh, PartitionSpec(*[None] * axis, LEARNER_AXIS))

    def whole(leaf: Any) -> jax.ShapeDtypeStruct:
        shape = list(leaf.shape)
        shape[axis] *= topology.mesh.size
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(whole, tree)


def _nbytes(tree: ArrayTree) -> int:
    return sum(math.prod(leaf.shape) * int(leaf.dtype.itemsize) for leaf in jax.tree.leaves(tree))
