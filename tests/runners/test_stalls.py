"""A run in which something stands still ends, says what, and has an exit code that says so."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from paths import ROOT
from whole_runs import HookedEnv, HookedEnvs, on, tiny

import sebulba
from sebulba.runtime import threads
from sebulba.runtime.watchdog import StallError

LONG = 100_000
PROGRAM = """
import sys, time
sys.path.insert(0, "tests")
from whole_runs import HookedEnvs, hooked_learner, on, tiny
import sebulba

def hang(env_or_update):
    if getattr(env_or_update, "steps", env_or_update) == 30 and getattr(env_or_update, "actor", 1):
        print("hangs", flush=True)
        {how}

config = tiny(total_steps=10**6, {options})
sebulba.train(config, progress=False, topology=on(1), {part})
"""
ENVIRONMENT = "make_env=HookedEnvs(on_step=hang)"
LEARNER = "algorithm=hooked_learner(hang)"
SLEEPS = "time.sleep(600)"
# In native code, where no exception can be raised: another thread gets the signals.
IN_NATIVE_CODE = (
    "import ctypes, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2, 15]); "
    "ctypes.CDLL(None).sleep(600)"
)


def hanging(part: str, how: str = SLEEPS, **options: object) -> subprocess.Popen[str]:
    words = ", ".join(f"{name}={value!r}" for name, value in options.items())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(part=part, how=how, options=words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    return process


def end_of(process: subprocess.Popen[str], seconds: float) -> str:
    """What was written on standard error, by a process that ends within ``seconds``."""
    try:
        return process.communicate(timeout=seconds)[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_stuck_environment_ends_the_run_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "JOIN_SECONDS", 0.5)
    release = threading.Event()
    stuck = []

    def stick(env: HookedEnv) -> None:
        if env.actor == 1 and env.steps == 20:
            stuck.append(threading.current_thread().name)
            release.wait()

    start = time.monotonic()
    try:
        with (
            pytest.warns(RuntimeWarning, match=r"threads \['actor-\d'\] did not end"),
            pytest.raises(StallError) as caught,
        ):
            sebulba.train(
                tiny(total_steps=LONG, stall_seconds=6.0),
                make_env=HookedEnvs(on_step=stick),
                topology=on(1),
                progress=False,
            )
    finally:
        release.set()
    assert time.monotonic() - start < 30
    said = f"{stuck[0]} has been stepping its environments for"
    assert re.match(
        rf"nothing has moved for \d+ s: {said} \d+ s. .*--stall-seconds", str(caught.value)
    )
    report = capfd.readouterr().err
    # The stack says where, and the other actor only waits.
    assert "in stick" in report and f"{stuck[0]}:\n" in report
    assert re.search(r"actor-\d has been waiting for room in its queue for", report)


@pytest.mark.slow
def test_a_run_that_moves_slowly_goes_on() -> None:
    slow = HookedEnvs(on_step=lambda env: time.sleep(0.7 * (env.steps < 12)))
    config = tiny(stall_seconds=6.0, total_steps=60)
    result = sebulba.train(config, make_env=slow, topology=on(1), progress=False)
    assert result.updates > 0


@pytest.mark.slow
def test_the_process_ends_where_the_learner_is_stuck_in_native_code() -> None:
    process = hanging(LEARNER, IN_NATIVE_CODE, stall_seconds=6.0, grace_seconds=1.0)
    report = end_of(process, 30)
    assert process.returncode == 75, report
    assert "the learner has been starting an update for" in report
    assert "in hang" in report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "how"),
    [
        pytest.param(signal.SIGTERM, IN_NATIVE_CODE, id="SIGTERM, native"),
        pytest.param(signal.SIGTERM, SLEEPS, id="SIGTERM"),
        pytest.param(signal.SIGINT, IN_NATIVE_CODE, id="SIGINT, native"),
        pytest.param(signal.SIGINT, SLEEPS, id="SIGINT"),
    ],
)
def test_a_stuck_learner_does_not_outlive_the_grace_period(
    number: signal.Signals, how: str
) -> None:
    process = hanging(LEARNER, how, grace_seconds=2.0)
    process.send_signal(number)
    start = time.monotonic()
    report = end_of(process, 30)
    assert 1.5 < time.monotonic() - start < 12
    assert process.returncode == 130, report
    assert "asked to stop, but the learner has been starting an update for" in report


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_second_signal_ends_a_stuck_learner_at_once(number: signal.Signals) -> None:
    process = hanging(LEARNER, IN_NATIVE_CODE)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(number)
    start = time.monotonic()
    report = end_of(process, 30)
    assert time.monotonic() - start < 5
    assert process.returncode == 130, report
    assert "ended at once by a second signal" in report


def test_a_signal_while_the_parts_are_made_raises_before_anything_is_written(
    tmp_path: Path,
) -> None:
    def interrupt(env: HookedEnv) -> None:
        raise AssertionError("no actor may start")

    class Probed(HookedEnvs):
        def __call__(self, num_envs: int, seed: int) -> sebulba.Env:
            signal.raise_signal(signal.SIGTERM)
            return super().__call__(num_envs, seed)

    with pytest.raises(KeyboardInterrupt):
        sebulba.train(
            tiny(out=tmp_path / "run"),
            make_env=Probed(on_step=interrupt),
            topology=on(1),
            progress=False,
        )
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_gives_its_result() -> None:
    def interrupt(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 41:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(sebulba.Interrupted) as caught:
        sebulba.train(
            tiny(total_steps=LONG),
            make_env=HookedEnvs(on_step=interrupt),
            topology=on(1),
            progress=False,
        )
    result = caught.value.result
    assert result.updates > 0 and result.metrics[-1]["update"] == result.updates
    assert all(leaf.is_ready() for leaf in jax.tree.leaves(result.params))


@pytest.mark.slow
def test_a_stuck_environment_leaves_time_for_a_checkpoint(tmp_path: Path) -> None:
    process = hanging(ENVIRONMENT, grace_seconds=4.0, out=str(tmp_path / "run"))
    process.send_signal(signal.SIGTERM)
    report = end_of(process, 30)
    assert process.returncode != 130 and "sebulba.runners.training.Interrupted" in report, report
    assert any(path.name.isdigit() for path in (tmp_path / "run" / "checkpoints").iterdir())
