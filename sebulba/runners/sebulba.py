"""The training loop, which runs in the learner's thread."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.devices import distributed
from sebulba.inference import ParamsSlot
from sebulba.learners.forms import check_histograms, check_logs, checked_pair
from sebulba.metrics.meter import Meter, Row, joined
from sebulba.rundir.checkpoint import DamagedError
from sebulba.rundir.directory import RunDirectory, Start
from sebulba.runners.actors import start_actors
from sebulba.runners.evaluating import Evaluations
from sebulba.runners.intake import Intake
from sebulba.runners.parts import Parts
from sebulba.runners.rows import Rows
from sebulba.runners.supervision import Supervision
from sebulba.runners.turn_count import TurnCount, count_turn
from sebulba.runtime import memory, threads
from sebulba.runtime.activity import EVALUATION, OTHERS
from sebulba.runtime.queues import ShutDown, TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.runtime.threads import POLL_SECONDS, ThreadGroup, wait_until_ready
from sebulba.types import Histogram, Params, Unroll


class SebulbaRun:
    """One run on one host. ``run`` trains in the thread that calls it, and starts the actors'.

    Attributes:
      updates: updates so far, including those before a resume.
    """

    def __init__(
        self,
        parts: Parts,
        directory: RunDirectory,
        rows: Rows,
        start: Start,
        supervision: Supervision,
    ) -> None:
        """Training continues from ``start``; nothing is written before ``run``."""
        config, topology = parts.config, parts.topology
        self._parts = parts
        self._config = config
        self._topology = topology
        self._learner = parts.learner
        self._directory = directory
        self._rows = rows
        self._state, self._turn, counts, self._previous = start
        self._logged_turn = self._turn
        # Turn 0 has no checkpoint: a run that is interrupted in it saves one, to be resumed.
        self._saved_turn: int | None = self._turn or None
        self.updates = int(counts["updates"])
        # Steps so far when a version of the parameters was published: the last two.
        self._steps_at = {self._turn - 1: int(counts.get("steps_before", 0))}
        lanes = config.num_actors(len(topology.inference))
        self._agent_check = parts.check
        # With a lag of 1, the first unrolls act with the parameters of the turn before.
        oldest = self._turn - 1 if self._previous is not None else self._turn
        self._schedule = Schedule(
            lanes, parts.unrolls_per_turn, self._turn, config.policy_lag, oldest
        )
        self._meter = Meter(parts.spec.frame_skip, lanes, distributed.gather, counts)
        self._moment = self._meter.moment(self.updates)  # Of the last row.
        self._queue: TrajectoryQueue[Unroll] = TrajectoryQueue(lanes, config.queue_size)
        self._slots = [ParamsSlot(device) for device in topology.inference]
        self._interrupt, self._watchdog = supervision
        self._now = self._watchdog.activities.learner
        self._intake = Intake(
            self._queue,
            self._schedule,
            parts.remote,
            any_order=config.policy_lag == "any",
            activity=self._now,
        )
        self._evaluations = Evaluations(
            config,
            parts.evaluator if distributed.is_primary() else None,
            topology.inference[0],
            counts,
            self._watchdog.activities.evaluation,
            self._queue.shutdown,
        )
        self._stop = False  # A host was asked to stop, and all hosts know it.
        # What to do with results of the devices, and the arrays of these results, oldest first.
        self._pending: deque[tuple[Callable[[Any], None], Any]] = deque()

    def run(self, notes: Sequence[str] = ()) -> None:
        """Train to the end, or until the first failure or interrupt.

        When it returns, the last checkpoint, if any, has been written.

        Args:
          notes: lines to show first.

        Raises:
          Exception: the first failure of any thread.
        """
        # What does not end must leave time for a checkpoint.
        group = ThreadGroup(min(threads.JOIN_SECONDS, self._config.grace_seconds / 2))
        group.on_stop(self._queue.shutdown)
        for slot in self._slots:
            group.on_stop(slot.shutdown)
        self._interrupt.raises = False  # From here on, there is something to save.
        try:
            for note in [*notes, *self._load_replay()]:
                self._rows.message(note)
            with self._intake.listening(group, self._is_complete), self._evaluations:
                self._directory.begin(self._meter.steps)
                self._remember_best()
                self._act_and_learn(group)
                self._finish()
                self._evaluate_last()
                self._now.set("waiting for the evaluation to end")
        except BaseException:
            # The actors have ended. The learner may still be writing a replay, and the caller
            # is about to unlock the directory, after which another run may write to it.
            self._now.set("writing the last files", files=True)
            with contextlib.suppress(Exception):
                self._learner.close()
            raise
        self._now.set("writing the last files", files=True)
        self._learner.close()
        self._directory.finish()

    def _remember_best(self) -> None:
        try:
            self._evaluations.resume(self._directory.best())
        except DamagedError as error:
            self._rows.message(f"{error}: the next evaluation becomes the best one")

    def _load_replay(self) -> list[str]:
        if not self._turn:
            return []
        self._now.set("reading the replay", files=True)
        note = self._learner.load_replay(self._directory.replay(self._turn))
        return [note] if note else []

    def local_params(self) -> Params:
        """The parameters to act with, on the first learner device of this host."""
        return _local(self._learner.params(self._state))

    def interrupted(self) -> bool:
        """Whether the run ended because a host was asked to stop."""
        # All hosts know the same steps and, but for a host that is alone, the same requests.
        if self._meter.steps >= self._config.total_steps:
            return False
        return self._stop or self._is_alone_and_asked()

    def _is_complete(self) -> bool:
        """Whether training that has ended has reached its end."""
        return not self.interrupted()

    def _act_and_learn(self, group: ThreadGroup) -> None:
        try:
            # Compiling for the actors needs parameters on their devices.
            if self._previous is not None:
                before = self._turn - 1
                self._publish_as(before, _local(self._previous), self._steps_at[before])
                self._previous = None
            self._publish()
            self._make_up_for_evaluation()
            self._now.set("starting the actors")
            actors = self._watchdog.activities.of_actor
            start_actors(self._parts, self._schedule, self._slots, self._queue, group, actors)
            # After an interrupt; or after a failure of an actor, which ``group.close`` raises.
            with contextlib.suppress(ShutDown):
                self._intake.wait_for_lanes(self._poll, lambda: self._interrupt.signal is not None)
                self._learn()
            if self.interrupted():
                self._rows.message("stopping: a second signal ends the run at once")
        except Exception as error:
            error.add_note(f"in the learner, update {self.updates}")
            raise
        finally:
            self._now.set("waiting for the actors to end")
            group.close()
        self._evaluations.check()

    def _learn(self) -> None:
        config = self._config
        while self._meter.steps < config.total_steps and not self.interrupted():
            with self._meter.timed("queue_wait"):
                unrolls = self._intake.take(self._turn, self._poll)
                self._meter.add_unrolls(unrolls, self._turn)
            self._check_agent(unrolls[0])
            with self._meter.timed("update"):
                self._update(unrolls)
            self._turn += 1
            with self._meter.timed("publish"):
                self._publish()
            saves_now = self._turn % config.checkpoint.interval == 0
            is_due = self._evaluations.notice(self._meter.steps)
            # A checkpoint comes with a row, since its counts are those of the last row; and an
            # evaluation, which is of a moment at which all is counted.
            if saves_now or is_due or self._turn % config.log_every == 0:
                with self._meter.timed("update"):
                    self._collect(under_way=0)
                # So that it does not depend on timing which parameters are evaluated.
                if is_due and config.policy_lag != "any":
                    self._wait_for_evaluation(self._poll)
                self._log()
                if self._evaluations.is_due() and not self._evaluations.is_busy():
                    self._begin_evaluation()
            if saves_now:
                self._save()
            self._directory.check()

    def _check_agent(self, unroll: Unroll) -> None:
        """Check an agent of the user's own, once."""
        check, self._agent_check = self._agent_check, None
        if check is None:
            return
        self._now.set("checking the agent")
        # Nothing was published after the first update yet, so what has acted is still there.
        params = self._slots[0].held(unroll.version)
        assert params is not None
        check(params, unroll)

    def _update(self, unrolls: list[Unroll]) -> None:
        """Make this turn's updates, in step with the other hosts.

        The results of one update are collected while the next one runs, so at most two are under
        way. Waiting here also keeps Python from running far ahead of the devices. The steps of a
        turn are always known in the next, whatever else was collected meanwhile: learners may
        depend on how many there were.
        """
        # On CPUs, the runtime may make this call wait for the other hosts.
        self._now.set("starting an update", waits_for=OTHERS)
        # Dispatched first, and even without updates: all hosts communicate in the same order.
        interrupted = self._interrupt.signal is not None
        count = count_turn(unrolls, interrupted, self._topology)
        self._pending.append((self._count_turn, count))
        due = self._learner.add(unrolls)
        for _ in range(due):
            made = self._learner.update(self._state, self._progress(self._meter.steps))
            self._state, logs = checked_pair(self._learner, "update", made, "state")
            self.updates += 1
            self._pending.append((self._meter.add_logs, logs))
            self._collect(under_way=1)
        if not due:
            self._collect(under_way=0)

    def _progress(self, steps: int) -> float:
        """What share of ``total_steps`` so many counted steps are: the same on all hosts."""
        return min(1.0, steps / self._config.total_steps)

    def _count_turn(self, count: TurnCount) -> None:
        # The sum over all hosts, so all of them stop after the same turn.
        self._meter.add_steps(count.steps)
        self._stop = self._stop or bool(count.interrupts)

    def _finish(self) -> None:
        self._collect(under_way=0, polls=False)
        if self._turn > self._logged_turn:
            self._log()
        if self._turn != self._saved_turn:
            self._save()

    def _make_up_for_evaluation(self) -> None:
        """Evaluate the checkpoint, if an evaluation was under way when it was written."""
        self._evaluations.make_up(self._meter.steps)
        if self._evaluations.is_due():
            self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        # Those that the actors have: nothing donates them.
        params = self._slots[0].held(self._turn)
        self._evaluations.begin(params, self._turn, self._moment)

    def _wait_for_evaluation(self, poll: Callable[[], None]) -> None:
        """Wait for the one that is under way, if any, unless a host was asked to stop."""
        while self._evaluations.is_busy():
            self._now.set("waiting for the evaluation", waits_for=EVALUATION)
            # First, since training that goes on after a signal makes evaluations that are lost.
            poll()
            if self._watchdog.is_asked_to_stop():
                return
            self._evaluations.wait(POLL_SECONDS)

    def _evaluate_last(self) -> None:
        """Evaluate the final parameters, when everything else has been written."""
        if self._parts.evaluator is None or not distributed.is_primary() or self.interrupted():
            return
        while True:
            self._wait_for_evaluation(self._check)
            if self._evaluations.is_busy():
                self._rows.message("asked to stop: the last evaluation is given up")
                return
            row = self._take_evaluation()
            if row:
                # Not in a row of its own, in which other hosts would have to take part.
                self._rows.add_to_last(row)
            if self._evaluations.turn == self._turn:
                return
            self._begin_evaluation()

    def _check(self) -> None:
        """As ``_poll``, when training has ended."""
        self._watchdog.check()
        self._evaluations.check()

    def _take_evaluation(self) -> Row:
        """The metrics of the evaluation that has ended since the last row, if any."""
        found = self._evaluations.take()
        if found is None:
            return {}
        if found.params is not None:
            self._directory.save_best(found.params, found.counts)
        return found.row

    def _collect(self, under_way: int, polls: bool = True) -> None:
        """Wait for results of the devices, oldest first, until only ``under_way`` are to come.

        With 1, the devices have work while this host waits and starts the next turn. Results are
        collected by counting them, not by asking which have arrived, so that all hosts know the
        same number of steps at the same turn.

        With ``polls``, a failure ends the wait. Without, when the actors have ended: the queue is
        down then.
        """
        self._now.set("waiting for the results of an update", waits_for=OTHERS)
        while len(self._pending) > under_way:
            take_in, arrays = self._pending[0]
            if polls:
                wait_until_ready(arrays, self._poll_in_turn)
            self._pending.popleft()
            take_in(jax.device_get(arrays))

    def _poll(self) -> None:
        """Called often while this thread waits between turns."""
        self._poll_in_turn()
        if self._is_alone_and_asked():
            raise ShutDown

    def _poll_in_turn(self) -> None:
        """The same within a turn, all of whose updates are made, though a signal has come."""
        self._watchdog.check()
        self._tell_news()
        if self._queue.is_down():
            raise ShutDown

    def _is_alone_and_asked(self) -> bool:
        """Whether the only host was asked to stop: of several, all must stop at the same turn."""
        return self._topology.num_hosts == 1 and self._interrupt.signal is not None

    def _tell_news(self) -> None:
        for line in self._intake.news():
            self._rows.message(line)

    def _publish(self) -> None:
        self._now.set("publishing parameters")
        # A slot copies them: the next update donates the originals.
        self._publish_as(self._turn, self.local_params(), self._meter.steps)

    def _publish_as(self, version: int, params: Params, steps: int) -> None:
        self._steps_at[version] = steps
        self._steps_at.pop(version - 2, None)
        for slot in self._slots:
            slot.publish(version, params, self._progress(steps))

    def _log(self) -> None:
        self._now.set("gathering metrics", waits_for=OTHERS)
        self._tell_news()
        histograms: dict[str, Histogram] = {}
        if distributed.is_primary():
            own = self._learner.histograms()
            check_histograms(self._learner, own)
            histograms = {**self._meter.actions(), **own}
        metrics = self._learner.metrics()
        check_logs(self._learner, "metrics", metrics)
        row = joined(
            self._meter.row(self.updates),
            self._intake.metrics(),
            self._epsilons(),
            metrics,
            self._take_evaluation(),
        )
        self._logged_turn = self._turn
        self._moment = {name: row[name] or 0 for name in self._moment}
        self._rows.add(row, histograms)
        memory.release()
        self._check_finite(row)

    def _check_finite(self, row: Row) -> None:
        """Stop training that has diverged, before bad checkpoints replace good ones.

        The parameters are what counts: an optimizer may skip updates whose loss is not finite. They
        are only fetched if the logs are not finite, or if a user's own learner logs neither value.
        """
        logs = [value for name in ("loss", "gradient_norm") if (value := row.get(name)) is not None]
        if logs and all(map(math.isfinite, logs)):
            return
        params = jax.device_get(self.local_params())
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
            raise FloatingPointError(
                f"the parameters are not finite by update {self.updates}: training has diverged. "
                "Make optimizer.learning_rate or optimizer.max_gradient_norm smaller; a loss of "
                "your own may also be infinite or NaN by itself. All checkpoints were written "
                "before this."
            )

    def _epsilons(self) -> Row:
        if self._parts.exploration is None:
            return {}
        epsilons = self._parts.exploration.epsilons(self._progress(self._meter.steps))
        return {"epsilon_min": float(epsilons.min()), "epsilon_max": float(epsilons.max())}

    def _save(self) -> None:
        self._now.set("writing a checkpoint", waits_for=OTHERS, files=True)
        self._saved_turn = self._turn
        # With a lag of 1, a resumed run begins with the version before, and explores as it did.
        before = {"steps_before": self._steps_at[self._turn - 1]}
        counts = {"updates": self.updates, **before, **self._meter.count()}
        is_last = self._meter.steps >= self._config.total_steps
        counts |= self._evaluations.count(is_last)
        params = self._learner.params(self._state)
        replay = self._directory.save(
            self._turn, self._state, params, counts, self._params_before()
        )
        if replay is not None:
            self._learner.save_replay(replay)

    def _params_before(self) -> Params | None:
        """Those of the turn before, if actors act with them when the run is resumed here."""
        if self._config.policy_lag != "1":
            return None
        return jax.device_get(self._slots[0].held(self._turn - 1))


def _local(params: Params) -> Params:
    """What the first learner device of this host has of replicated parameters."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
