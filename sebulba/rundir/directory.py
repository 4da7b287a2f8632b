"""The run directory: config.json, metrics.jsonl, TensorBoard files, checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sebulba.config import Config, to_json
from sebulba.devices.distributed import agree_on, gather, is_primary, refusing_together
from sebulba.metrics.writer import MetricsWriter
from sebulba.rundir import place
from sebulba.rundir.checkpoint import Checkpointer, Counts, DamagedError
from sebulba.rundir.lock import LOCK_NAME, Lock, lock
from sebulba.rundir.reading import (
    CONFIG,
    best_in,
    check_resumable,
    check_unfinished,
    checkpoints_in,
    read_fields,
    turns_in,
)
from sebulba.types import Histogram, Params
from sebulba.validation import ConfigError


class Start(NamedTuple):
    """Where a run starts.

    Attributes:
      state: the learner's.
      turn: number of turns behind it.
      counts: see ``Counts``.
      previous: the parameters of the turn before, if actors with a fixed lag had them.
    """

    state: Any
    turn: int
    counts: Counts
    previous: Params | None = None


class RunDirectory:
    """The files that a run writes; none of them if the config names no directory.

    A context manager. Every host has one, but only the primary host writes the config and the
    metrics; Orbax writes the checkpoints from all hosts.
    """

    def __init__(self, config: Config, algorithm: str) -> None:
        """Create the directory, or find what to resume; no file in it changes before ``begin``.

        Args:
          config: says where (``out``), and whether to ``resume``.
          algorithm: name of the algorithm.

        Raises:
          ConfigError: another run writes to the directory, it is not empty, it cannot be written,
            or it holds nothing to resume.
        """
        self._config = config
        self._algorithm = algorithm
        self._checkpoints: Checkpointer | None = None
        self._best: Checkpointer | None = None
        self._metrics: MetricsWriter | None = None
        self._lock: Lock | None = None
        self._begins_anew = False
        self._damaged: list[int] = []
        self._last_saved: int | None = None  # While there may be replays that are older.
        if config.out is None:
            if config.resume:
                raise ConfigError(
                    "resume needs a run directory: set out, on the command line with --out."
                )
            return
        # If anything below raises, ``undo`` gives back the lock; if not, ``pop_all`` keeps it.
        with _writable(config.out), contextlib.ExitStack() as undo:
            undo.callback(self._unlock)
            with refusing_together():
                if is_primary():
                    self._claim(config.out)
            place.check_shared(config.out)
            if config.resume:
                with refusing_together():
                    check_resumable(config, algorithm)
                self._checkpoints = self._open_checkpoints(config.out)
                undo.callback(self._checkpoints.close)
                check_unfinished(self._checkpoints, config)
            undo.pop_all()

    def _claim(self, out: Path) -> None:
        """Lock the directory, which must be one to resume, or empty, and where all can be done."""
        if self._config.resume:
            read_fields(out)  # Refuses a directory of no run before it is locked.
        else:
            out.mkdir(parents=True, exist_ok=True)
        # Locked before its contents are looked at, which a run in progress changes.
        self._lock = lock(out)
        if not self._config.resume:
            _check_empty(out)
        place.check_renames(out)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error here must not hide the one that ended the run.
        with contextlib.suppress(Exception) if kind is not None else contextlib.nullcontext():
            self.finish()

    def restore(self, state: Any, params: Params) -> Start:
        """The newest good checkpoint of a resumed run; otherwise a start from ``state``.

        A resumed run that wrote no checkpoint also starts from ``state``.

        Args:
          state: the learner's fresh state, which also gives the shapes and shardings to restore.
          params: the parameters in it.

        Raises:
          ConfigError: the checkpoint does not fit ``state``, none can be read, or hosts see
            different checkpoints.
        """
        if not self._config.resume:
            return Start(state, 0, {"updates": 0})
        assert self._checkpoints is not None
        turns = self._checkpoints.turns()
        # Hosts whose directory is not shared, or is seen late, would otherwise restore other turns.
        agree_on({"the checkpoints in the run directory": turns})
        if not turns:
            self._begins_anew = True
            return Start(state, 0, {"updates": 0})
        errors = []
        for turn in reversed(turns):
            try:
                restored, error = self._checkpoints.restore(turn, state, params), None
            except DamagedError as damage:
                error = damage
            if not gather(np.array(error is not None)).any():
                return Start(restored[0], turn, *restored[1:])
            self._damaged.append(turn)
            errors.append(error or "another host cannot read it")
        raise ConfigError(
            f"{errors[0]}, and there is no older one that can be read: train again, with out set "
            "to another directory, on the command line with --out."
        )

    @property
    def notes(self) -> list[str]:
        """Lines to print, after ``restore``."""
        if self._begins_anew:
            return [f"the run in {self._config.out} wrote no checkpoint yet: it begins anew"]
        if not self._damaged:
            return []
        assert self._checkpoints is not None
        turns = sorted(self._damaged)
        older = max(turn for turn in self._checkpoints.turns() if turn < turns[0])
        return [
            f"checkpoint(s) {turns} are damaged: the run goes on from {older}, and they are moved "
            f"to {self._damaged_in()}"
        ]

    def begin(self, steps: int) -> None:
        """Write the config, and start the metrics or continue them after ``steps`` agent steps.

        Files change only from here on, so call it when nothing can be refused any more.
        """
        out = self._config.out
        if out is None:
            return
        with _writable(out):
            with refusing_together():
                if is_primary():
                    _write_atomically(out / CONFIG, to_json(self._config, self._algorithm))
                    self._metrics = MetricsWriter(out, steps if self._config.resume else None)
            # A resumed run has opened them already, to find its newest checkpoint.
            self._checkpoints = self._checkpoints or self._open_checkpoints(out)
            if is_primary() and self._config.evaluation.interval:
                self._best = Checkpointer(best_in(out), alone=True)
            if self._damaged:
                self._set_damaged_aside(out)
            for half in self.replay(0).parent.glob("*.tmp"):  # Of a run that was killed.
                shutil.rmtree(half, ignore_errors=True)

    def _set_damaged_aside(self, out: Path) -> None:
        """Make room for the checkpoints of these turns, which the run will reach again."""
        assert self._checkpoints is not None
        with refusing_together():
            if is_primary():
                self._damaged_in().mkdir(exist_ok=True)
                for turn in self._damaged:
                    aside = self._damaged_in() / str(turn)
                    shutil.rmtree(aside, ignore_errors=True)  # Of an earlier resume.
                    os.rename(checkpoints_in(out) / str(turn), aside)
        self._checkpoints.reload()

    def _damaged_in(self) -> Path:
        assert self._config.out is not None
        return self._config.out / "damaged"

    def _open_checkpoints(self, out: Path) -> Checkpointer:
        return Checkpointer(checkpoints_in(out), self._config.checkpoint.max_to_keep)

    def write(
        self, row: Mapping[str, float | int | None], histograms: Mapping[str, Histogram]
    ) -> None:
        """Write one row of metrics, and histograms for TensorBoard; only the primary host does."""
        if self._metrics is not None:
            with self._noting():
                self._metrics.write(row, histograms)

    def save(
        self, turn: int, state: Any, params: Params, counts: Counts, previous: Params | None = None
    ) -> Path | None:
        """Start writing a checkpoint; see ``Checkpointer.save``.

        Returns:
          Where to write the learner's replay that goes with it; None if nothing is written.
        """
        if self._checkpoints is None:
            return None
        self._check_there()
        with self._noting():
            self._checkpoints.save(turn, state, params, counts, previous)
        self._last_saved = turn
        return self.replay(turn)

    def best(self) -> Counts | None:
        """The counts that were saved with the best parameters; None if there are none.

        Raises:
          DamagedError: they cannot be read.
        """
        if self._best is None or (number := self._best.latest()) is None:
            return None
        return self._best.counts(number)

    def save_best(self, params: Params, counts: Counts) -> None:
        """Start writing the parameters whose evaluation was best, in place of those before.

        Args:
          params: NumPy arrays.
          counts: of the run when it had them, and of their evaluation.
        """
        if self._best is None:
            return
        self._check_there()
        with self._noting():
            self._best.save_params((self._best.latest() or 0) + 1, params, counts)

    def _check_there(self) -> None:
        """Refuse to go on where the directory was removed: Orbax would make a new one."""
        out = self._config.out
        if out is not None and not (out / CONFIG).exists():
            raise FileNotFoundError(
                f"the run directory {out} has no {CONFIG} any more: it was removed or moved while "
                "the run wrote to it. Put it back and go on with resume, on the command line with "
                "--resume, or start again."
            )

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, if any."""
        for written in (self._checkpoints, self._best):
            if written is not None:
                with self._noting():
                    written.check()
        if self._last_saved is not None:
            self._remove_old_replays()

    def _remove_old_replays(self) -> None:
        """Keep this host's newest complete replay whose checkpoint is complete, and newer ones."""
        # Which of the two is complete first is open, and a kill may come between.
        assert self._config.out is not None
        folder = self.replay(0).parent
        replays = turns_in(folder)
        kept = max(set(replays) & set(turns_in(checkpoints_in(self._config.out))), default=0)
        for turn in replays:
            if turn < kept:
                shutil.rmtree(folder / str(turn), ignore_errors=True)
        for replaced in folder.glob("*.old"):  # By a run that was killed while it gave a name.
            if int(replaced.stem) <= kept:
                shutil.rmtree(replaced, ignore_errors=True)
        if not replays or kept == self._last_saved:
            self._last_saved = None

    def finish(self) -> None:
        """Wait until everything is written, unlock, and raise the first error, if any."""
        # The callbacks run in reverse order, each even if another one raises: unlocking is last.
        metrics, self._metrics = self._metrics, None
        checkpoints, self._checkpoints = self._checkpoints, None
        best, self._best = self._best, None
        with self._noting(), contextlib.ExitStack() as stack:
            stack.callback(self._unlock)
            if self._last_saved is not None:
                stack.callback(self._remove_old_replays)
            if metrics is not None:
                stack.callback(metrics.close)
            if best is not None:
                stack.callback(best.close)
            if checkpoints is not None:
                stack.callback(checkpoints.close)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Add to an error inside, such as that of a full disk, where it was and what is left."""
        try:
            yield
        except Exception as error:
            error.add_note(
                f"while writing to the run directory {self._config.out}: its complete checkpoints "
                "stay. If it is full, make room there. Go on from the newest with resume, on the "
                "command line with --resume."
            )
            raise

    def _unlock(self) -> None:
        held, self._lock = self._lock, None
        if held is not None:
            held.release()

    def replay(self, turn: int) -> Path:
        """Where this host's learner keeps the replay of the checkpoint of ``turn``."""
        # One for each host, since a replay holds what the host's own actors saw.
        assert self._config.out is not None
        return self._config.out / "replay" / f"host-{jax.process_index()}" / str(turn)


@contextlib.contextmanager
def _writable(directory: Path) -> Iterator[None]:
    """Turn the errors of the file system inside the context into ``ConfigError``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write to the run directory {directory} ({error.strerror or error}): set out "
            "to another, on the command line with --out."
        ) from error


def _check_empty(directory: Path) -> None:
    if any(path.name != LOCK_NAME for path in directory.iterdir()):
        raise ConfigError(
            f"the run directory {directory} is not empty: nothing in it is overwritten. Set out "
            "to another, on the command line with --out, or resume from its last checkpoint, with "
            "--resume."
        )


def _write_atomically(path: Path, text: str) -> None:
    # A process that is killed meanwhile leaves the old file or the new one, never half of it.
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        # Nor an empty one after a power failure.
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
