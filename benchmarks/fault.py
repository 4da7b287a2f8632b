"""What the faults of ``soak.py`` share: their register, and runs to break."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
      name: of its function.
      title: what breaks.
      how: how it is injected.
      expected: what happens then; the function checks it.
      lost: what is lost.
      run: injects it once, in the current folder; returns the seconds until it was noticed, or None
        where there is nothing to notice.
      times: injections in a campaign.
    """

    name: str
    title: str
    how: str
    expected: str
    lost: str
    run: Callable[[random.Random], float | None]
    times: int = 10


FAULTS: dict[str, Fault] = {}


def fault(title: str, how: str, expected: str, lost: str, times: int = 10) -> Any:
    """Registers the function that it decorates."""

    def register(run: Callable[[random.Random], float | None]) -> Any:
        FAULTS[run.__name__] = Fault(run.__name__, title, how, expected, lost, run, times)
        return run

    return register


class Running:
    """A process under test, whose output goes to a file; at the end, all its session is killed."""

    def __init__(self, words: list[str], name: str = "output", **environment: str) -> None:
        self._path = Path(f"{name}.txt").absolute()
        with self._path.open("w") as output:
            self.process = subprocess.Popen(
                words,
                env={**_environment(), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A session of its own outlives the process that injects, if that is killed.
                preexec_fn=_end_with_parent,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill -9 the process and all in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def text(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], Any], seconds: float = 120) -> Any:
        """Wait until ``condition``, which the process must live to see."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, f"ended early:\n{self.text()}"
            assert time.monotonic() < deadline, f"not in {seconds} s:\n{self.text()}"
            time.sleep(0.02)
        return found

    def says(self, text: str, seconds: float = 120) -> None:
        """Wait until it has printed ``text``."""
        self.wait_for(lambda: text in self.text(), seconds)

    def end(self, seconds: float, code: int | tuple[int, ...] = 0) -> float:
        """Wait for its end, within ``seconds`` and with this code; returns how long it took."""
        start = time.monotonic()
        try:
            found = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.text()}") from None
        codes = code if isinstance(code, tuple) else (code,)
        assert found in codes, f"exit code {found}, not {codes}:\n{self.text()}"
        return time.monotonic() - start


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _environment() -> dict[str, str]:
    names = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return {
        **names,
        "JAX_PLATFORMS": "cpu",
        "PYTHONUNBUFFERED": "1",
        # The same small programs are compiled again and again.
        "JAX_COMPILATION_CACHE_DIR": str(Path.home() / ".cache" / "sebulba-soak"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def sebulba(*words: str, name: str = "output", **environment: str) -> Running:
    """``sebulba WORDS``."""
    return Running([sys.executable, "-m", "sebulba", *words], name, **environment)


def program(code: str, name: str = "output", **environment: str) -> Running:
    """A Python program, which finds the tests' faulty parts."""
    start = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
    return Running([sys.executable, "-c", start + code], name, **environment)


SMALL = (
    *("--envs-per-actor", "12", "--batch-size", "12", "--log-every", "10"),
    *("--checkpoint.interval", "20", "--total-steps", "1000000000"),
)
RUN = "run"


def small(*words: str, preset: str = "vtrace-catch") -> list[str]:
    """The words of a small training that goes on for ever, in the folder ``RUN``."""
    return ["train", preset, *SMALL, "--out", RUN, *words]


def checkpoints(out: str = RUN) -> list[int]:
    """Turns of its complete checkpoints."""
    return sorted(int(p.name) for p in Path(out).glob("checkpoints/*") if p.name.isdigit())


def steps(out: str = RUN) -> int:
    """Steps of its last row of metrics."""
    rows = Path(out, "metrics.jsonl").read_text().splitlines()
    return max((json.loads(row)["steps"] for row in rows[:-1]), default=0)


def resumes(*words: str, preset: str = "vtrace-catch", out: str = RUN, pod: int = 0) -> str:
    """Go on with the run for a moment; returns what was printed."""
    from sebulba.rundir.reading import checkpoint_turns

    assert checkpoint_turns(Path(out))
    more = str(steps(out) + 5_000)
    before = ["pod", "--hosts", str(pod), "--"] if pod else []
    words = ("train", preset, "--out", out, "--resume", "--total-steps", more, *words)
    with sebulba(*before, *words, name="resumed") as again:
        again.end(180)
        rows = [json.loads(row) for row in Path(out, "metrics.jsonl").read_text().splitlines()]
        # The last row comes once more with each evaluation that ends after it.
        while rows[-1]["steps"] == rows[-2]["steps"] and "evaluation_steps" in rows[-1]:
            rows.pop()
        counted = [row["steps"] for row in rows]
        assert counted == sorted(set(counted)), "the steps of metrics.jsonl have a gap or a double"
        assert counted[-1] >= int(more)
        return again.text()
