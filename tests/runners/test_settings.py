"""Settings of JAX that users turn on, and outputs that go away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from whole_runs import on, tiny

import sebulba
from sebulba.metrics.progress import Progress
from sebulba.rundir.directory import has_checkpoints

SCRIPT = """
import dataclasses, sebulba
from sebulba import NetworkConfig, presets
from whole_runs import Pictures, tiny

sebulba.train(tiny(network=NetworkConfig(torso="small", hidden_sizes=(8,))), make_env=Pictures)
config = presets.get("r2d2-catch")
replay = dataclasses.replace(config.replay, placement="device", min_size=32, capacity=64)
network = dataclasses.replace(config.network, core_size=8, hidden_sizes=(8,))
sebulba.train(dataclasses.replace(config, total_steps=1000, replay=replay, network=network))
"""


def test_trains_with_64_bits_and_checks_for_nan() -> None:
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": "1",
        "JAX_DEBUG_NANS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path]),
    }
    words = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]


def test_training_goes_on_when_nobody_reads_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        result = sebulba.train(tiny(out=tmp_path), topology=on(1))
        with Progress(10, "title") as display:
            display.message("nobody reads this")
        monkeypatch.undo()
        # What is left in its buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())
    assert result.metrics and has_checkpoints(tmp_path)


def test_a_run_directory_may_be_a_string_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sebulba.train(tiny(out="~/run"), topology=on(1), progress=False)
    assert has_checkpoints(tmp_path / "run")
    assert len(sebulba.evaluate_run("~/run", 3).returns) == 3
