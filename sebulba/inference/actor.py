"""An actor thread: steps its environments, and acts on an inference device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import jax
import numpy as np

from sebulba.inference.check import check_timestep
from sebulba.inference.episodes import EpisodeTracker
from sebulba.inference.params import ParamsSlot, Versioned
from sebulba.inference.program import ActorProgram
from sebulba.runtime import threads
from sebulba.runtime.queues import ShutDown, TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.types import ArrayTree, Env, Trajectory, Unroll


class Actor:
    """One actor; ``run`` is the body of its thread."""

    def __init__(
        self,
        lane: int,
        make_env: Callable[[], Env],
        program: ActorProgram,
        slot: ParamsSlot,
        queue: TrajectoryQueue[Unroll],
        schedule: Schedule,
        key: jax.Array,
        exploration: ArrayTree = (),
    ) -> None:
        """Everything is called from the actor's own thread only.

        Args:
          lane: number of the actor on this host, and of its lane of the queue.
          make_env: makes its environments.
          program: what it runs on the device of ``slot``.
          slot: where its parameters come from.
          queue: where its unrolls go.
          schedule: which unroll is its first, and on which version of the parameters each acts.
          key: from which all its random keys are derived.
          exploration: the argument of the program's ``explore``.
        """
        self.name = f"actor-{lane}"
        self._lane = lane
        self._make_env = make_env
        self._program = program
        self._slot = slot
        self._queue = queue
        self._schedule = schedule
        self._key = key
        self._unroll = schedule.first_unroll(lane)
        self._exploration = exploration
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def run(self) -> None:
        """Act until the queue or the slot is shut down; a failure says where it came from."""
        threads.give_way()
        try:
            env = self._make_env()
            try:
                self._act_forever(env)
            finally:
                env.close()
        except Exception as error:
            error.add_note(
                f"in thread {self.name} on device {self._slot.device}, unroll {self._unroll}"
            )
            raise

    def _act_forever(self, env: Env) -> None:
        timestep = env.reset()
        check_timestep(timestep, self._program.spec)
        episodes = EpisodeTracker(timestep)
        current = self._params()
        key, unroll, exploration = jax.device_put(
            (self._key, np.int32(self._unroll), self._exploration), self._slot.device
        )
        carry = self._program.start(current.params, key, unroll)
        while True:
            for _ in range(self._program.unroll_length):
                if self._queue.is_down():  # Whoever stops waits for the environment's step alone.
                    raise ShutDown
                start = time.perf_counter()
                # The call itself takes the timestep to the device, at an eighth of the cost of
                # device_put: it is the one transfer that is not asked for by name.
                with jax.transfer_guard_host_to_device("allow"):
                    on_device, carry = self._program.step(
                        current.params, carry, timestep, exploration
                    )
                action = np.asarray(jax.device_get(on_device))
                acted = time.perf_counter()
                timestep = env.step(action)
                episodes.update(timestep)
                self._seconds["environment"] += time.perf_counter() - acted
                self._seconds["act"] += acted - start
            check_timestep(timestep, self._program.spec)
            start = time.perf_counter()
            with jax.transfer_guard_host_to_device("allow"):
                shards, carry = self._program.finish(carry, timestep)
            moved = [
                jax.device_put(shard, device)
                for shard, device in zip(shards, self._program.learners, strict=True)
            ]
            self._seconds["transfer"] += time.perf_counter() - start
            self._hand_over(moved, current.version, episodes)
            self._unroll += 1
            current = self._params()

    def _hand_over(self, shards: list[Trajectory], version: int, episodes: EpisodeTracker) -> None:
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        unroll = Unroll(self._lane, shards, version, episodes.ended(), seconds)
        start = time.perf_counter()
        self._queue.put(self._lane, unroll)
        self._seconds["queue"] += time.perf_counter() - start

    def _params(self) -> Versioned:
        start = time.perf_counter()
        version = self._schedule.version_of(self._lane, self._unroll)
        current = self._slot.newest() if version is None else self._slot.exactly(version)
        self._seconds["params"] += time.perf_counter() - start
        return current
