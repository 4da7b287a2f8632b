"""Ends a run that stands still, and says which of its threads, or which host, does."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

from sebulba.runtime.activity import EVALUATION, OTHERS, Activities
from sebulba.runtime.attempt import attempt
from sebulba.runtime.interrupt import Interrupt, may_end

WRONG_INPUT = 2
"""Exit code of a command whose input is wrong."""
STALLED = 75
"""Exit code of a run that stood still: EX_TEMPFAIL, a failure that may not happen again."""
INTERRUPTED = 130
"""Exit code of a run that was asked to stop."""
PATIENCE = 6
"""How many times longer than usual nothing may move while a program is compiled."""
_LOOK_SECONDS = 0.5
_LATE_SECONDS = 5.0
"""A look that comes so late finds a process that was stopped: by Ctrl-Z, or with its container."""
_PRINT_SECONDS = 2.0
_FOLLOW_SECONDS = 10.0
"""How long a run may take to end after another host has: the coordinator waits a little longer."""
_MOVED_BYTES = 1 << 16
"""Files are being read or written if this much is between two looks; a row of metrics is less."""


class StallError(RuntimeError):
    """Nothing in a run has moved for too long."""


class HostError(RuntimeError):
    """Another host has ended.

    Attributes:
      code: its exit code, which is also this host's.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def exit_code(error: BaseException) -> int:
    """The exit code of a program that ends by ``error``."""
    if isinstance(error, HostError):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return STALLED if isinstance(error, StallError) else 1


class Hosts(Protocol):
    """What the hosts of a run tell each other besides their collective operations."""

    def tell(self, text: str) -> None:
        """Replace what this host says of itself."""

    def heard(self) -> dict[int, str]:
        """What the other hosts last said of themselves."""

    def first_failure(self) -> HostError | None:
        """The first other host that has failed, if any."""

    def catch_up(self) -> None:
        """Hear what the others have told by now."""

    def tell_failure(self, text: str, code: int) -> None:
        """Tell the others that this host has failed."""

    def leave(self) -> None:
        """Give them time to end together with this process, which has failed."""


class Alone:
    """The ``Hosts`` of a run on a single host."""

    def tell(self, text: str) -> None:
        """Nobody hears it."""

    def heard(self) -> dict[int, str]:
        """Nobody says anything."""
        return {}

    def first_failure(self) -> HostError | None:
        """There is no other host that could fail."""
        return None

    def catch_up(self) -> None:
        """There is nothing to hear."""

    def tell_failure(self, text: str, code: int) -> None:
        """Nobody hears it."""

    def leave(self) -> None:
        """Nobody waits for this process."""


class Watchdog:
    """Looks after one run from a thread of its own.

    The learner's thread moves the run: it never does one thing for long, and neither does an
    evaluation that is under way. If one of them does, ``error`` is set, which ``check`` raises in
    the learner's thread. If that does not end then, since it is in native code, the process does.

    Attributes:
      activities: what the threads of the run are doing.
      error: why the run must end, if it must.
    """

    def __init__(
        self,
        stall_seconds: float,
        grace_seconds: float,
        interrupt: Interrupt,
        hosts: Hosts | None = None,
    ) -> None:
        """Nothing is watched before ``watch``.

        Args:
          stall_seconds: how long nothing may move; 0 for any time.
          grace_seconds: how long nothing may move after a signal, and how long the run may take to
            end after it has stood still.
          interrupt: signals to this process.
          hosts: the other hosts that take part; None if there are none.
        """
        self.activities = Activities()
        self.error: Exception | None = None
        self._stall_seconds = stall_seconds
        self._grace_seconds = grace_seconds
        self._interrupt = interrupt
        self._hosts = hosts or Alone()
        self._ended = threading.Event()
        self._bytes = _bytes_moved()
        # When bytes of files moved last: on any host, and on this one.
        self._bytes_at = self._own_bytes_at = -math.inf
        self._files_heard: dict[int, str] = {}
        # Each time that this process was stopped: when it went on, and for how long it had not.
        self._stops: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watchdog]:
        """Watch the run inside the context."""
        thread = threading.Thread(target=self._look_forever, name="watchdog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def check(self) -> None:
        """Raise ``error`` if there is one."""
        if self.error is not None:
            raise self.error

    def is_asked_to_stop(self) -> bool:
        """Whether this host was asked to stop, or another one that waits for this one."""
        return self._interrupt.signal is not None or _STOPS in self._hosts.heard().values()

    def end_now(self) -> None:
        """End the process, at a second signal."""
        self._end_process("ended at once by a second signal", INTERRUPTED)

    def _look_forever(self) -> None:
        while not self._wait():
            self._notice_files()
            self._hosts.tell(self._say())
            if error := self._hosts.first_failure():
                self._stop(error)
            self._look()

    def _wait(self) -> bool:
        """Wait for the next look; whether the run has ended."""
        due = time.monotonic() + _LOOK_SECONDS
        has_ended = self._ended.wait(_LOOK_SECONDS)
        if (late := (now := time.monotonic()) - due) > _LATE_SECONDS:
            self._stops.append((now, late))
        return has_ended

    def _counted(self, since: float) -> float:
        """``since``, later by the time in which this process was stopped, which does not count."""
        return since + sum(late for went_on, late in self._stops if went_on > since)

    def _look(self) -> None:
        """End the run if it has stood still for too long."""
        now = time.monotonic()
        number = self._interrupt.signal
        if number is not None and may_end(number):
            moved = max(self._learner_moved(), self._interrupt.at)
            if now - moved > self._grace_seconds and not self._do_others_move_files():
                self._end_process(f"asked to stop, but {self._culprit()}", INTERRUPTED)
            return
        still, limit = now - self._moved(), self._stall_seconds
        if not limit or still <= limit:
            return
        if now - self._learner_moved() > limit and self._do_others_move_files():
            return
        # Asked for last, since all hosts must be asked for it. That takes time, in which the run
        # may move again.
        if still > limit * self._patience() and now - self._moved() > limit:
            self._stop_what_stands_still(still)

    def _moved(self) -> float:
        """When the learner did something last, or the evaluation, if that is longer ago."""
        moved, evaluation = self._learner_moved(), self.activities.evaluation
        return moved if evaluation.idle else min(moved, self._counted(evaluation.since))

    def _learner_moved(self) -> float:
        return self._counted(max(self.activities.learner.since, self._bytes_at))

    def _notice_files(self) -> None:
        before, self._bytes = self._bytes, _bytes_moved()
        if self.activities.learner.files and self._bytes - before > _MOVED_BYTES:
            self._bytes_at = self._own_bytes_at = time.monotonic()

    def _do_others_move_files(self) -> bool:
        """Whether another host reads or writes files, for which this one may have to wait.

        They count as files of this one, if that host has moved more of them since it was last
        asked: it may stand still by now, or be gone.
        """
        before, self._files_heard = self._files_heard, self._hosts.heard()
        moves = any(
            text.startswith(_FILES) and text != before.get(host)
            for host, text in self._files_heard.items()
        )
        if moves:
            self._bytes_at = time.monotonic()
        return moves

    def _say(self) -> str:
        """What this host tells the others."""
        has_moved = time.monotonic() - self._own_bytes_at < self._grace_seconds
        if self.activities.learner.files and has_moved:
            return f"{_FILES}, {self._bytes:,} bytes so far"
        if self.activities.learner.seconds() > _COMPILE_SECONDS and _is_compiling():
            return _COMPILES
        if self.activities.learner.waits_for == EVALUATION:
            return _EVALUATES
        if self.activities.learner.waits_for != OTHERS:
            return self.activities.culprit()
        return OTHERS if self._interrupt.signal is None else _STOPS

    def _patience(self) -> float:
        heard = self._hosts.heard().values()
        if _EVALUATES in heard:  # That host notices if its evaluation stands still.
            return math.inf
        # Another host may still compile what this one found in its cache.
        return PATIENCE if _COMPILES in heard or _is_compiling() else 1

    def _stop_what_stands_still(self, seconds: float) -> None:
        stood = f"nothing has moved for {seconds:.0f} s: {self._culprit()}"
        _print(f"{stood}\n{self.activities.describe()}\nThe stacks of all threads:\n{_stacks()}")
        remedy = (
            "If that may take so long, set stall_seconds to more, on the command line with "
            "--stall-seconds (0: no limit)."
        )
        self._stop(StallError(f"{stood}. {remedy}"))

    def _culprit(self) -> str:
        """Who stands still."""
        if self.activities.learner.waits_for != OTHERS:
            return self.activities.culprit()
        # A host that waits for others is held up, and does not hold up.
        culprits = [
            f"on host {host}, {text}"
            for host, text in self._hosts.heard().items()
            if text not in (OTHERS, _STOPS)
        ]
        return "; ".join(culprits) or self.activities.culprit()

    def _stop(self, error: Exception) -> None:
        """Have the run end by ``error``, or the process if the run does not."""
        self.error = error
        seconds = self._grace_seconds
        if isinstance(error, HostError):
            seconds = min(seconds, _FOLLOW_SECONDS)
        if not self._ended.wait(seconds):
            self._end_process(
                f"the run has not ended by itself: {error}",
                exit_code(error),
                is_cause=not isinstance(error, HostError),
            )

    def _end_process(self, why: str, code: int, is_cause: bool = True) -> None:
        _print(f"{why}\nThe process ends. The last complete checkpoint stays.")
        if is_cause:
            self._hosts.tell_failure(why, code)
        self._hosts.leave()
        attempt(sys.stdout.flush, _PRINT_SECONDS)
        os._exit(code)


_COMPILES = "compiling"
_EVALUATES = "waiting for its evaluation"
_FILES = "reading or writing files"
_STOPS = "asked to stop"
_COMPILE_SECONDS = 5.0
"""Compilations that take less hold nobody up."""
_COMPILER = tuple(
    os.path.join("jax", "_src", *words)
    for words in (
        ("compiler.py",),
        # What comes before: tracing Python, and writing down what was traced.
        ("interpreters", "partial_eval.py"),
        ("interpreters", "mlir.py"),
    )
)


def _bytes_moved() -> int:
    """Bytes that this process has read from files and written; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
    return 0


def _is_compiling() -> bool:
    """Whether any thread is in JAX's compiler."""
    for frame in sys._current_frames().values():
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_filename.endswith(_COMPILER):
                return True
            caller = caller.f_back
    return False


def _stacks() -> str:
    """The stack of each thread, after its name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, 'a thread of another library')}:\n"
        + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
    )


def _print(text: str) -> None:
    # Standard error may be closed, or a pipe that nobody reads.
    attempt(lambda: print(f"sebulba: {text}", file=sys.stderr, flush=True), _PRINT_SECONDS)
