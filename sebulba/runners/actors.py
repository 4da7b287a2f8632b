"""The actor threads of one host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from sebulba.inference import Actor, ActorProgram, ParamsSlot, actor_name
from sebulba.runners.parts import Parts
from sebulba.runtime.activity import Activity
from sebulba.runtime.queues import TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.runtime.threads import ThreadGroup
from sebulba.types import ArrayTree, MakeEnv, Unroll


def start_actors(
    parts: Parts,
    schedule: Schedule,
    slots: Sequence[ParamsSlot],
    queue: TrajectoryQueue[Unroll],
    group: ThreadGroup,
    activity_of: Callable[[str], Activity],
) -> None:
    """Compile the actors' program for each inference device, and start the actors of this host.

    Lanes are numbered device by device, in the order of ``slots``. Remote ones come after them, and
    go round the devices.

    Args:
      parts: what the run is made of.
      schedule: gives each actor its first unroll.
      slots: one for each inference device; the first parameters must have been published.
      queue: takes the actors' unrolls.
      group: starts the actors' threads.
      activity_of: where the actor of this name notes what it is doing.
    """
    config = parts.config
    program = ActorProgram(
        parts.agent,
        parts.spec,
        config.unroll_length,
        parts.topology.learners,
        parts.exploration and parts.exploration.explore,
    )

    def start(lane: int, slot: ParamsSlot, make_env: MakeEnv) -> None:
        # Numbered over all hosts, so that no two actors have the same random numbers.
        number = jax.process_index() * schedule.lanes + lane
        env_seed = _env_seed(config.seed, number, schedule.first_unroll(lane))
        actor = Actor(
            lane=lane,
            make_env=lambda: make_env(config.envs_per_actor, env_seed),
            program=program,
            slot=slot,
            queue=queue,
            schedule=schedule,
            key=jax.random.fold_in(jax.random.key(config.seed), number + 1),
            exploration=_epsilons(parts, number),
            activity=activity_of(actor_name(lane)),
            checks_actions=parts.check is not None,
        )
        group.start(actor.name, actor.run)

    lanes = iter(range(schedule.lanes))
    for slot in slots:
        # Epsilons of any actor will do: only their shape matters.
        program.warm_up(slot.newest().params, _epsilons(parts, 0)(0.0), slot.device)
        for lane in itertools.islice(lanes, config.actors_per_device):
            start(lane, slot, parts.make_env)
    for lane, slot in zip(lanes, itertools.cycle(slots), strict=False):
        assert parts.remote is not None
        start(lane, slot, parts.remote.make_env(lane))


def _env_seed(seed: int, number: int, first_unroll: int) -> int:
    """The seed of an actor's environments.

    The first unroll is part of it, so that the environments of a resumed run do not repeat the
    episodes that the run started with.
    """
    seeds = np.random.SeedSequence([seed, number, first_unroll])
    # 31 bits: environments in C++ take a signed 32-bit seed.
    return int(seeds.generate_state(1)[0] >> 1)


def _epsilons(parts: Parts, number: int) -> Callable[[float], ArrayTree]:
    """What an actor explores with, as a function of progress."""
    if parts.exploration is None:
        return lambda progress: ()
    return parts.exploration.of_actor(number, parts.config.envs_per_actor)
