"""Evaluations of a run while its training goes on, in a thread of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from sebulba.config import Config
from sebulba.metrics.meter import Row
from sebulba.rundir.checkpoint import Counts
from sebulba.runners.evaluation import Evaluation, Evaluator
from sebulba.runtime import threads
from sebulba.runtime.activity import EVALUATION, Activity
from sebulba.runtime.queues import ShutDown
from sebulba.runtime.threads import ThreadGroup
from sebulba.types import Params

SCORE = "evaluation_return_mean"
"""By which the best parameters are chosen."""
_OF_RETURN = ("mean", "standard_error", "median", "minimum", "maximum")


class Evaluated(NamedTuple):
    """An evaluation that has ended.

    Attributes:
      row: its metrics.
      counts: what to save with the parameters: updates behind them, and the score.
      params: NumPy arrays, the parameters, if they are the best so far.
    """

    row: Row
    counts: Counts
    params: Params | None


class _Job(NamedTuple):
    params: Params
    turn: int
    moment: Counts


class Evaluations:
    """The evaluations of one run: when they are due, what makes them, and what they have shown.

    All hosts have one, so that they know when one is due, but only one with an ``evaluator`` makes
    them. A context manager, which ends the thread and raises its failure.

    Attributes:
      turn: the turns behind the parameters that were evaluated last; None if none were.
    """

    def __init__(
        self,
        config: Config,
        evaluator: Evaluator | None,
        device: jax.Device,
        counts: Counts,
        activity: Activity,
        on_stop: Callable[[], None],
    ) -> None:
        """Nothing runs before the first ``begin``.

        Args:
          config: of the run.
          evaluator: plays the episodes; None on hosts that do not evaluate.
          device: where the parameters are.
          counts: of the checkpoint that the run goes on from.
          activity: where the thread notes what it is doing.
          on_stop: called when the thread fails, to wake the learner, and at the end.
        """
        self._config = config
        self._evaluator = evaluator
        self._device = device
        self._now = activity
        self._group = ThreadGroup(min(threads.JOIN_SECONDS, config.grace_seconds / 2))
        self._group.on_stop(self._wake)
        self._group.on_stop(on_stop)
        self._changed = threading.Condition()
        self._job: _Job | None = None
        self._started = False
        self._ended: Evaluated | None = None
        self._waited = 0.0
        self._best: float | None = None
        # Agent steps when an evaluation was last due, and when the last one was due whose results
        # are in a row: a resumed run makes up for one that was under way.
        steps = counts.get("evaluation_steps", counts.get("steps", 0))
        self._due_at = self._written_at = int(steps)
        self._begun_for = self._due_at
        self._is_due = False
        self._skipped = 0
        self.turn: int | None = None

    def __enter__(self) -> Evaluations:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error here must not hide the one that came first.
        with contextlib.suppress(Exception) if kind is not None else contextlib.nullcontext():
            self._group.close()

    def resume(self, best: Counts | None) -> None:
        """Take over what was saved with the best parameters before."""
        self._best = None if best is None else best[SCORE]

    def count(self, is_last: bool) -> Counts:
        """What a checkpoint must hold; the parameters of the last one are always evaluated."""
        if not self._config.evaluation.interval:
            return {}
        return {"evaluation_steps": self._due_at if is_last else self._written_at}

    def make_up(self, steps: int) -> None:
        """Notice, at the start of a resumed run, that one was due which is in no row."""
        self.notice(steps)
        self._skipped = 0  # The interval may be another one.

    def notice(self, steps: int) -> bool:
        """Whether an evaluation has come due after ``steps`` agent steps: the same on all hosts."""
        interval = self._config.evaluation.interval
        if not interval or steps // interval == self._due_at // interval:
            return False
        # One for each interval that has passed is due; the last of them takes the others' place.
        passed = steps // interval - self._due_at // interval
        self._skipped += passed - 1 + self._is_due
        self._due_at, self._is_due = steps, True
        return True

    def is_due(self) -> bool:
        """Whether this host should begin one as soon as the one before has ended."""
        return self._is_due and self._evaluator is not None

    def is_busy(self) -> bool:
        """Whether one is under way."""
        return self._job is not None

    def begin(self, params: Params, turn: int, moment: Counts) -> None:
        """Begin to evaluate the parameters of ``turn``.

        Args:
          params: on the device; nothing may donate them.
          turn: the number of turns behind them. With the run's seed it gives that of the episodes.
          moment: ``update``, ``steps``, ``frames`` and ``seconds`` of the run.
        """
        self._is_due, self._begun_for, self.turn = False, self._due_at, turn
        with self._changed:
            self._now.set("beginning")
            self._job = _Job(params, turn, moment)
            self._changed.notify_all()
        if not self._started:
            self._started = True
            self._group.start(EVALUATION, self._run)

    def wait(self, seconds: float) -> None:
        """Wait until none is under way, but no longer than this."""
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: not self.is_busy() or self._group.stopping.is_set(), seconds
            )
        self._waited += time.perf_counter() - start

    def check(self) -> None:
        """Raise the failure of the thread, if there was one."""
        self._group.check()

    def take(self) -> Evaluated | None:
        """The evaluation that has ended since the last call, if any."""
        with self._changed:
            ended, self._ended = self._ended, None
        if ended is None:
            return None
        self._written_at = self._begun_for
        told = {"evaluation_wait_seconds": self._waited, "evaluation_skipped": self._skipped}
        self._waited, self._skipped = 0.0, 0
        return ended._replace(row={**ended.row, **told})

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        # Before the environments are made, because their threads inherit the priority.
        threads.give_way()
        # What is computed without parameters goes to their device too, and not to the first one,
        # which may learn. The arrays of a step are transfers that a user may have disallowed.
        with jax.default_device(self._device), jax.transfer_guard("allow"):
            while True:
                self._evaluate(self._next())

    def _next(self) -> _Job:
        with self._changed:
            self._changed.wait_for(lambda: self._job is not None or self._group.stopping.is_set())
            if self._job is None or self._group.stopping.is_set():
                raise ShutDown
            return self._job

    def _evaluate(self, job: _Job) -> None:
        assert self._evaluator is not None
        start = time.perf_counter()
        options = self._config.evaluation
        seeds = np.random.SeedSequence(self._config.seed, spawn_key=(job.turn,))
        # 31 bits: environments in C++ take a signed 32-bit seed.
        seed = int(seeds.generate_state(1)[0] >> 1)
        self._now.set("starting its environments")
        try:
            found = self._evaluator.evaluate(
                job.params, options.episodes, seed, options.max_steps, self._on_step
            )
        except Exception as error:
            error.add_note(
                f"in thread {EVALUATION} on device {self._device}, of the parameters of update "
                f"{job.moment['update']}"
            )
            raise
        found = dataclasses.replace(found, env=self._config.env)
        row = _row(found, job.moment, time.perf_counter() - start)
        score = float(found.returns.mean())
        is_best = self._best is None or score > self._best
        if is_best:
            self._best = score
        row["evaluation_best_return_mean"] = self._best
        params = jax.device_get(job.params) if is_best else None
        counts = {"updates": job.moment["update"], SCORE: score}
        with self._changed:
            self._ended, self._job = Evaluated(row, counts, params), None
            self._now.set("idle", idle=True)
            self._changed.notify_all()

    def _on_step(self, ended: int) -> None:
        if self._group.stopping.is_set():
            raise ShutDown
        self._now.set(f"playing its episodes, of which {ended} have ended,")


def _row(found: Evaluation, moment: Counts, seconds: float) -> Row:
    """The metrics of an evaluation that took so many ``seconds``."""
    row: Row = {f"evaluation_{name}": value for name, value in moment.items()}
    for name, value in found.summary().items():
        row[f"evaluation_return_{name}" if name in _OF_RETURN else f"evaluation_{name}"] = value
    row["evaluation_duration_seconds"] = seconds
    return row
