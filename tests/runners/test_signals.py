"""A signal ends the run: it saves a checkpoint, stops its threads, raises KeyboardInterrupt."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from whole_runs import HookedEnv, HookedEnvs, hooked_learner, on, rows_of, tiny

import sebulba
from sebulba import VTraceConfig
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in
from sebulba.runtime import threads

SECONDS = 20.0
"""Less than a wait without end would take; more than a busy machine needs to write a checkpoint."""
LONG = 100_000


def run(config: VTraceConfig, **parts: Any) -> Any:
    parts.setdefault("make_env", HookedEnvs())
    return sebulba.train(config, topology=on(1), progress=False, **parts)


@pytest.mark.parametrize(
    ("number", "slow"),
    [
        (signal.SIGINT, True),
        (signal.SIGHUP, False),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
    ],
)
def test_signal_saves_and_ends(number: int, slow: bool, tmp_path: Path) -> None:
    sent_at = []

    def send(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 41:
            sent_at.append(time.monotonic())
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    config = tiny(total_steps=LONG, out=tmp_path)
    # From shortly before the signal: the actors wait for it.
    learner = hooked_learner(lambda update: time.sleep(0.2 * (slow and update >= 12)))
    with pytest.raises(KeyboardInterrupt):
        run(config, algorithm=learner, make_env=HookedEnvs(on_step=send))
    assert time.monotonic() - sent_at[0] < SECONDS
    assert signal.getsignal(number) is before
    last = rows_of(tmp_path)[-1]
    saved = Checkpointer(checkpoints_in(tmp_path))
    assert saved.latest() == last["update"]
    resumed = run(tiny(total_steps=last["steps"] + 40, out=tmp_path, resume=True))
    assert resumed.updates > last["update"]


def test_signal_before_the_first_update(tmp_path: Path) -> None:
    def interrupt(env: HookedEnv) -> None:
        if env.actor == 0:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        run(tiny(out=tmp_path), make_env=HookedEnvs(on_reset=interrupt))
    assert run(tiny(out=tmp_path, resume=True)).updates > 0


def test_stuck_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "JOIN_SECONDS", 0.5)
    release = threading.Event()

    def stick(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 20:
            signal.raise_signal(signal.SIGINT)
            release.wait()

    try:
        with (
            pytest.warns(RuntimeWarning, match=r"threads \['actor-\d'\] did not end"),
            pytest.raises(KeyboardInterrupt),
        ):
            run(tiny(total_steps=LONG), make_env=HookedEnvs(on_step=stick))
    finally:
        release.set()


def test_run_from_another_thread_needs_no_signals() -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tiny())))
    thread.start()
    thread.join()
    assert results[0].updates > 0
