"""A signal ends the run: it saves a checkpoint, stops its threads, raises KeyboardInterrupt."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from whole_runs import HookedEnv, HookedEnvs, hooked_learner, on, rows_of, tiny, tiny_r2d2

import sebulba
from sebulba import Config, algorithms
from sebulba.metrics.meter import Meter
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in
from sebulba.runtime import threads

SECONDS = 20.0
"""Less than a wait without end would take; more than a busy machine needs to write a checkpoint."""
LONG = 100_000


def run(config: Config, **parts: Any) -> Any:
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


def test_a_turn_that_has_begun_makes_all_of_its_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay has counted them: no resumed run would make up for them."""
    # As if no result were there when it is first asked for.
    monkeypatch.setattr("sebulba.runners.sebulba.wait_until_ready", lambda arrays, poll: poll())

    def send(update: int) -> None:
        if update == 6:
            signal.raise_signal(signal.SIGINT)

    # Three updates a turn.
    config = tiny_r2d2(total_steps=LONG, samples_per_insert=3, out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(config, algorithm=hooked_learner(send, algorithms.R2D2))
    assert rows_of(tmp_path)[-1]["update"] == 9


def test_a_signal_in_the_last_turn_interrupts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = run(tiny()).updates
    add, calls = Meter.add_unrolls, itertools.count(1)

    def add_unrolls(*args: Any) -> None:
        if next(calls) == turns:
            signal.raise_signal(signal.SIGINT)
        add(*args)

    monkeypatch.setattr(Meter, "add_unrolls", add_unrolls)
    try:
        result = run(tiny(out=tmp_path))
    except KeyboardInterrupt:  # Which would end all tests.
        pytest.fail("all steps are done and saved")
    assert result.updates == turns
    assert rows_of(tmp_path)[-1]["steps"] >= tiny().total_steps


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
