"""A signal to the process of a training, or a kill, leaves a run that goes on."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import ROOT
from whole_runs import on, rows_of, tensorboard_steps

import sebulba
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in

PROGRAM = """
import sys
from sebulba.cli.main import main
main(sys.argv[1:])
"""


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    """Train Catch in another process, on one device, until it has written checkpoints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    words = ["train", "vtrace-catch", "--out", str(out), "--total-steps", "10000000"]
    words += ["--checkpoint.interval", "5", "--log-every", "2", "--network.hidden-sizes", "8"]
    # As the tiny config, so that it is compiled already.
    words += ["--envs-per-actor", "4", "--batch-size", "4", "--unroll-length", "5"]
    words += ["--optimizer.learning-rate", "1e-3", "--optimizer.no-decay-to-zero"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any(p.name.isdigit() for p in checkpoints_in(out).glob("*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def resume(out: Path) -> None:
    """In this process, for a few updates more."""
    saved = Checkpointer(checkpoints_in(out))
    update = saved.latest()
    assert update is not None
    saved.close()
    config = dataclasses.replace(sebulba.rundir.reading.load_config(out), resume=True)
    counts = Checkpointer(checkpoints_in(out)).counts(update)
    more = dataclasses.replace(config, total_steps=int(counts["steps"]) + 2000)
    result = sebulba.train(more, progress=False, topology=on(1))
    updates = [row["update"] for row in rows_of(out)]
    assert updates == sorted(set(updates)) and updates[-1] == result.updates > update
    assert tensorboard_steps(out) == [row["steps"] for row in rows_of(out)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_a_process(number: int, tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    sent = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "stopping: a second signal ends the run at once" in output
    assert f"sebulba train vtrace-catch --out {tmp_path / 'run'} --resume" in output
    resume(tmp_path / "run")


@pytest.mark.slow
def test_killed_process(tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    process.kill()
    process.communicate(timeout=30)
    resume(tmp_path / "run")
