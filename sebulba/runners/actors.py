"""The actor threads of one host."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import numpy as np

from sebulba.inference import Actor, ActorProgram, ParamsSlot
from sebulba.runners.parts import Parts
from sebulba.runtime.queues import TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.runtime.threads import ThreadGroup
from sebulba.types import ArrayTree, Unroll


def start_actors(
    parts: Parts,
    schedule: Schedule,
    slots: Sequence[ParamsSlot],
    queue: TrajectoryQueue[Unroll],
    group: ThreadGroup,
) -> None:
    """Compile for each device, and start its actors, which take the lanes in order."""
    config, exploration = parts.config, parts.exploration
    program = ActorProgram(
        parts.agent,
        parts.spec,
        config.unroll_length,
        parts.topology.learners,
        exploration and exploration.explore,
    )

    def epsilons(number: int) -> ArrayTree:
        return () if exploration is None else exploration.of_actor(number, config.envs_per_actor)

    def start(lane: int, slot: ParamsSlot) -> None:
        # Over all hosts, so that no two actors have the same random numbers.
        number = jax.process_index() * schedule.lanes + lane
        seeds = np.random.SeedSequence([config.seed, number, schedule.first_unroll(lane)])
        env_seed = int(seeds.generate_state(1)[0] >> 1)
        actor = Actor(
            lane=lane,
            make_env=lambda: parts.make_env(config.envs_per_actor, env_seed),
            program=program,
            slot=slot,
            queue=queue,
            schedule=schedule,
            key=jax.random.fold_in(jax.random.key(config.seed), number + 1),
            exploration=epsilons(number),
        )
        group.start(actor.name, actor.run)

    lanes = iter(range(schedule.lanes))
    for slot in slots:
        program.warm_up(slot.newest().params, epsilons(0), slot.device)
        for lane in itertools.islice(lanes, config.actors_per_device):
            start(lane, slot)
