"""An actor thread, which steps its environments and acts on an inference device."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable

import jax
import numpy as np

from sebulba.envs.contract import TimestepCheck, check_action, check_spec
from sebulba.inference.actions import ActionCounter
from sebulba.inference.episodes import EpisodeTracker
from sebulba.inference.params import ParamsSlot, Versioned
from sebulba.inference.program import ActorProgram
from sebulba.runtime import threads
from sebulba.runtime.activity import Activity
from sebulba.runtime.queues import ShutDown, TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.types import ArrayTree, Env, EnvsLost, Trajectory, Unroll


def actor_name(lane: int) -> str:
    """The name of an actor's thread."""
    return f"actor-{lane}"


class Actor:
    """One actor. ``run`` is what its thread does."""

    def __init__(
        self,
        lane: int,
        make_env: Callable[[], Env],
        program: ActorProgram,
        slot: ParamsSlot,
        queue: TrajectoryQueue[Unroll],
        schedule: Schedule,
        key: jax.Array,
        exploration: Callable[[float], ArrayTree] = lambda progress: (),
        activity: Activity | None = None,
        checks_actions: bool = False,
    ) -> None:
        """Store the arguments; all work is done in ``run``, in the actor's own thread.

        Args:
          lane: number of the actor on this host, and of its lane of the queue.
          make_env: returns its environments.
          program: the functions that it runs on the device of ``slot``.
          slot: where it gets parameters.
          queue: where it puts unrolls.
          schedule: which unroll is its first, and which version of the parameters each acts with.
          key: the key that all its random keys are derived from.
          exploration: gives the argument of the program's ``explore``, a pytree of arrays, for the
            share of the training that was done when the parameters were published.
          activity: where it notes what it is doing.
          checks_actions: whether to check, in its first unroll, that actions are as the spec says.
        """
        self.name = actor_name(lane)
        self._lane = lane
        self._make_env = make_env
        self._program = program
        self._slot = slot
        self._queue = queue
        self._schedule = schedule
        self._key = key
        self._unroll = schedule.first_unroll(lane)
        self._exploration = exploration
        self._steps = 0
        self._now = activity or Activity()
        self._checks_actions = checks_actions
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def run(self) -> None:
        """Act until the queue or the slot is shut down.

        Where the environments are lost, it starts again with new ones, and the same unroll.

        Raises:
          ShutDown: the run ends.
          Exception: any failure, with a note that names this actor.
        """
        # Before the environments are made, because their threads inherit the priority.
        threads.give_way()
        try:
            self._now.set("making its environments")
            env = self._make_env()
            try:
                self._act_forever(env)
            finally:
                env.close()
        except Exception as error:
            error.add_note(
                f"in thread {self.name} on device {self._slot.device}, unroll {self._unroll}, "
                f"after {self._steps} steps"
            )
            raise

    def _act_forever(self, env: Env) -> None:
        check_spec(env.spec, self._program.spec.num_envs)
        continues = True
        while True:
            # What was not handed over is dropped, and so is the recurrent state: no trajectory has
            # steps of environments that are gone and of those that come after them.
            with contextlib.suppress(EnvsLost):
                self._act_until_lost(env, continues)
            continues = False

    def _act_until_lost(self, env: Env, continues: bool) -> None:
        self._now.set("resetting its environments")
        timestep = env.reset()
        check = TimestepCheck(self._program.spec)
        check.reset(timestep)
        episodes = EpisodeTracker(timestep)
        actions = ActionCounter(self._program.spec.action)
        current = self._params()
        key, unroll = jax.device_put((self._key, np.int32(self._unroll)), self._slot.device)
        carry = self._program.start(current.params, key, unroll)
        while True:
            exploration = jax.device_put(self._exploration(current.progress), self._slot.device)
            for _ in range(self._program.unroll_length):
                # Asked in each step, so that stopping takes no longer than one step.
                if self._queue.is_down():
                    raise ShutDown
                self._now.set("acting")
                start = time.perf_counter()
                # NumPy arguments of a call take an eighth of the time of device_put. JAX regards
                # them as implicit transfers, which a user may have disallowed.
                with jax.transfer_guard_host_to_device("allow"):
                    on_device, carry = self._program.step(
                        current.params, carry, timestep, exploration
                    )
                # Waits for the device, which has read the arrays of `timestep` once it answers.
                action = np.asarray(jax.device_get(on_device))
                if self._checks_actions:  # Before the environments do who knows what with them.
                    when = f"in step {self._steps + 1} of {self.name}"
                    check_action(action, self._program.spec.action, when)
                acted = time.perf_counter()
                self._now.set("stepping its environments")
                timestep = env.step(action)
                check.step(timestep)
                self._steps += 1
                episodes.update(timestep)
                actions.update(action, timestep)
                self._seconds["environment"] += time.perf_counter() - acted
                self._seconds["act"] += acted - start
            start = time.perf_counter()
            # The last timestep of this unroll is also the first of the next: `step` gets it again.
            with jax.transfer_guard_host_to_device("allow"):
                shards, carry = self._program.finish(carry, timestep)
            # Nothing waits here, neither for `finish` nor for the copies.
            moved = [
                jax.device_put(shard, device)
                for shard, device in zip(shards, self._program.learners, strict=True)
            ]
            self._seconds["transfer"] += time.perf_counter() - start
            # The parameters are read after waiting for the queue, so that they are new ones.
            self._hand_over(moved, current.version, episodes, actions, continues)
            continues, self._checks_actions = True, False
            self._unroll += 1
            current = self._params()

    def _hand_over(
        self,
        shards: list[Trajectory],
        version: int,
        episodes: EpisodeTracker,
        actions: ActionCounter,
        continues: bool,
    ) -> None:
        # The wait for the queue, which is not over yet, is reported with the next unroll.
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        unroll = Unroll(
            self._lane, shards, version, episodes.ended(), seconds, continues, actions.taken()
        )
        self._now.set("waiting for room in its queue")
        start = time.perf_counter()
        self._queue.put(self._lane, unroll)
        self._seconds["queue"] += time.perf_counter() - start

    def _params(self) -> Versioned:
        self._now.set("waiting for parameters")
        start = time.perf_counter()
        version = self._schedule.version_of(self._lane, self._unroll)
        current = self._slot.newest() if version is None else self._slot.exactly(version)
        self._seconds["params"] += time.perf_counter() - start
        return current
