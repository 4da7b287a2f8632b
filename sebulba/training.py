"""The training loop, which is the learner's thread."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sebulba import algorithms, distributed, hosts
from sebulba.checkpoint import Counts
from sebulba.config import Config
from sebulba.display import Progress
from sebulba.inference import Actor, ActorProgram, ParamsSlot, Unroll
from sebulba.learners import Delivery, Learner, TurnCount, count_turn
from sebulba.meter import Meter, Row
from sebulba.queues import ShutDown, TrajectoryQueue
from sebulba.rundir import RunDirectory
from sebulba.schedule import Schedule
from sebulba.threads import POLL_SECONDS, Interrupt, ThreadGroup, wait_until_ready
from sebulba.topology import Topology
from sebulba.types import Agent, ArrayTree, EnvSpec, MakeEnv, Params


class TrainingRun:
    """One run; ``go`` is the learner's thread, which is the caller's."""

    def __init__(
        self,
        config: Config,
        topology: Topology,
        make_env: MakeEnv,
        spec: EnvSpec,
        agent: Agent,
        learner: Learner,
        directory: RunDirectory,
    ) -> None:
        self._config = config
        self._topology = topology
        self._make_env = make_env
        self._spec = spec
        self._agent = agent
        self._learner = learner
        self._directory = directory
        self.rows: list[Row] = []
        self._notes = [learner.describe()]
        self._state = learner.init(jax.random.key(config.seed))
        self.updates = 0
        self._turn = 0
        counts: Counts = {}
        if config.resume:
            spanning = hosts.to_all(self._state, topology)
            self._turn, restored, counts = directory.restore(spanning)
            self._state = hosts.from_all(restored, topology)
            self.updates = int(counts["updates"])
            self._notes.append(learner.load_memory(directory.memory(self._turn)))
        steps = int(counts.get("steps", 0))
        directory.start(steps)
        self._logged_turn = self._turn
        lanes = len(topology.inference) * config.actors_per_device
        self._schedule = Schedule(
            lanes, config.batch_size // config.envs_per_actor, self._turn, config.policy_lag
        )
        self._exploration = algorithms.make_exploration(
            config, topology.num_hosts * lanes * config.envs_per_actor
        )
        self._meter = Meter(
            spec.frame_skip,
            lanes,
            distributed.gather,
            steps=steps,
            episodes=int(counts.get("episodes", 0)),
            seconds=counts.get("seconds", 0.0),
        )
        self._queue: TrajectoryQueue[Unroll] = TrajectoryQueue(lanes, config.queue_size)
        self._slots = [ParamsSlot(device) for device in topology.inference]
        self._interrupt = Interrupt()
        self._stop = False
        self._pending: deque[tuple[Callable[[Any], None], Any]] = deque()

    def go(self, display: Progress, notes: Sequence[str] = ()) -> None:
        """Train to the end, or to the first failure or interrupt; show ``notes`` first."""
        group = ThreadGroup()
        group.on_stop(self._queue.shutdown)
        for slot in self._slots:
            group.on_stop(slot.shutdown)
        with self._interrupt.listen():
            try:
                for note in filter(None, [*notes, *self._notes]):
                    display.message(note)
                self._act_and_learn(group, display)
                self._finish(display)
            except BaseException:
                # After the actors: nothing is written any more once the directory is unlocked.
                with contextlib.suppress(Exception):
                    self._learner.close()
                raise
            self._learner.close()
            self._directory.finish()
        if self._interrupted():
            raise KeyboardInterrupt

    def local_params(self) -> Params:
        """The parameters on the first learner device of this host."""
        return jax.tree.map(
            lambda leaf: leaf.addressable_data(0), self._learner.params(self._state)
        )

    def _interrupted(self) -> bool:
        return self._stop or self._interrupt.signal is not None

    def _act_and_learn(self, group: ThreadGroup, display: Progress) -> None:
        try:
            self._publish()
            self._start_actors(group)
            with contextlib.suppress(ShutDown):
                self._learn(display)
            if self._interrupted():
                display.message("stopping; Ctrl-C again would end without a checkpoint")
        except Exception as error:
            error.add_note(f"in the learner, update {self.updates}")
            raise
        finally:
            group.close()

    def _learn(self, display: Progress) -> None:
        config = self._config
        while self._meter.steps < config.total_steps and not self._stop:
            with self._meter.timed("queue_wait"):
                deliveries = self._take()
            try:
                with self._meter.timed("update"):
                    self._update(deliveries)
            finally:
                self._turn += 1  # Also where an interrupt ends it: its unrolls are used up.
            with self._meter.timed("publish"):
                self._publish()
            saves_now = self._turn % config.checkpoint.every == 0
            # A checkpoint's counts are those of the last row.
            if saves_now or self._turn % config.log_every == 0:
                with self._meter.timed("update"):
                    self._collect(under_way=0)
                self._log(display)
            if saves_now:
                self._save()
            self._directory.check()

    def _update(self, deliveries: list[Delivery]) -> None:
        """This turn's updates, in step with the other hosts.

        Results of the last update arrive while the next one runs: at most two are under way.
        """
        interrupted = self._interrupt.signal is not None
        count = count_turn(deliveries, interrupted, self._topology)
        self._pending.append((self._count_turn, count))
        for _ in range(self._learner.add(deliveries)):
            self._state, logs = self._learner.update(self._state)
            self.updates += 1
            self._pending.append((self._meter.add_logs, logs))
            self._collect(under_way=1)
        self._collect(under_way=1)

    def _count_turn(self, count: TurnCount) -> None:
        self._meter.add_steps(count.steps)
        self._stop = self._stop or bool(count.interrupts)

    def _finish(self, display: Progress) -> None:
        self._collect(under_way=0)
        if self._turn > self._logged_turn:
            self._log(display)
        self._save()

    def _take(self) -> list[Delivery]:
        lanes = self._schedule.lanes_of(self._turn)
        unrolls = [self._take_from(lane) for lane in lanes]
        self._meter.add_unrolls(unrolls, self._turn)
        return [Delivery(lane, unroll.parts) for lane, unroll in zip(lanes, unrolls, strict=True)]

    def _take_from(self, lane: int) -> Unroll:
        while True:
            try:
                return self._queue.get(lane, POLL_SECONDS)
            except TimeoutError:
                self._poll()

    def _collect(self, under_way: int) -> None:
        """Wait for results of the devices, oldest first, until only so many are to come.

        One stays under way, so that the devices work on it meanwhile; which ones have come in is
        a matter of counting, so all hosts see the same number of steps at the same turn.
        """
        while len(self._pending) > under_way:
            take_in, arrays = self._pending[0]
            if under_way:
                wait_until_ready(arrays, self._poll)
            self._pending.popleft()
            take_in(jax.device_get(arrays))

    def _poll(self) -> None:
        # With several hosts, all must see the interrupt at the same turn (``_count_turn``).
        alone = self._topology.num_hosts == 1
        if self._queue.is_down() or (alone and self._interrupt.signal is not None):
            raise ShutDown

    def _publish(self) -> None:
        params = self.local_params()
        for slot in self._slots:
            slot.publish(self._turn, params)

    def _log(self, display: Progress) -> None:
        row = self._meter.row(self.updates) | self._learner.metrics() | self._epsilons()
        self.rows.append(row)
        self._logged_turn = self._turn
        self._directory.write(row)
        display.update(row)
        self._check_finite(row)

    def _check_finite(self, row: Row) -> None:
        """Stop where nothing can be learnt any more, before good checkpoints make way.

        An optimiser may have left out an update whose loss was not finite, and a learner of the
        user's own may log neither.
        """
        logs = [value for name in ("loss", "gradient_norm") if (value := row.get(name)) is not None]
        if logs and all(map(math.isfinite, logs)):
            return
        params = jax.device_get(self.local_params())
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
            raise FloatingPointError(
                f"the parameters are not finite by update {self.updates}: training has diverged. "
                "Make --optimiser.learning-rate or --optimiser.max-gradient-norm smaller; the "
                "checkpoints there are were written before."
            )

    def _epsilons(self) -> Row:
        if self._exploration is None:
            return {}
        epsilons = self._exploration.epsilons
        return {"epsilon_min": float(epsilons.min()), "epsilon_max": float(epsilons.max())}

    def _save(self) -> None:
        counts = {"updates": self.updates, **self._meter.count()}
        state = hosts.to_all(self._state, self._topology)
        memory = self._directory.save(self._turn, state, self._learner.params(state), counts)
        if memory is not None:
            self._learner.save_memory(memory)

    def _start_actors(self, group: ThreadGroup) -> None:
        config = self._config
        program = ActorProgram(
            self._agent,
            self._spec,
            config.unroll_length,
            len(self._topology.learners),
            self._exploration and self._exploration.explore,
        )
        lane = 0
        for slot, device in zip(self._slots, self._topology.inference, strict=True):
            program.warm_up(slot.newest().params, self._epsilons_of(0), device)
            for _ in range(config.actors_per_device):
                group.start(f"actor-{lane}", self._actor(lane, program, slot, device).run)
                lane += 1

    def _actor(
        self, lane: int, program: ActorProgram, slot: ParamsSlot, device: jax.Device
    ) -> Actor:
        config, schedule = self._config, self._schedule
        number = jax.process_index() * schedule.lanes + lane
        seeds = np.random.SeedSequence([config.seed, number, schedule.first_unroll(lane)])
        env_seed = int(seeds.generate_state(1)[0] >> 1)
        return Actor(
            name=f"actor-{lane}",
            lane=lane,
            make_env=lambda: self._make_env(config.envs_per_actor, env_seed),
            program=program,
            slot=slot,
            queue=self._queue,
            device=device,
            learners=self._topology.learners,
            key=jax.random.fold_in(jax.random.key(config.seed), number + 1),
            first_unroll=schedule.first_unroll(lane),
            version_of=lambda unroll: schedule.version_of(lane, unroll),
            unroll_length=config.unroll_length,
            exploration=self._epsilons_of(number),
        )

    def _epsilons_of(self, number: int) -> ArrayTree:
        if self._exploration is None:
            return ()
        return self._exploration.of_actor(number, self._config.envs_per_actor)
