"""With a fixed lag, a run that was interrupted ends with the bits of one that was not."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from clockwork import Clockwork
from paths import ROOT
from whole_runs import assert_same, on, tiny, tiny_ppo, tiny_pqn, tiny_r2d2

import sebulba
from sebulba import (
    CheckpointConfig,
    Config,
    NetworkConfig,
    ReplayCheckpointConfig,
)
from sebulba.rundir.reading import checkpoints_in


def vtrace(**changes: Any) -> Config:
    return tiny(checkpoint=CheckpointConfig(interval=10), log_every=5, **changes)


def r2d2(**changes: Any) -> Config:
    saving = ReplayCheckpointConfig(interval=10, save_replay=True)
    return tiny_r2d2(checkpoint=saving, log_every=5, **changes)


def ppo(**changes: Any) -> Config:
    """Whose order of steps must go on, and whose normalization too."""
    network = NetworkConfig(hidden_sizes=(8,), normalize_observations=True)
    saving = CheckpointConfig(interval=10)
    return tiny_ppo(checkpoint=saving, log_every=5, network=network, **changes)


def train(config: Config, **changes: Any) -> sebulba.TrainResult:
    config = dataclasses.replace(config, **changes)
    return sebulba.train(config, make_env=Clockwork, topology=on(1), progress=False)


@pytest.mark.parametrize("lag", [pytest.param("0", marks=pytest.mark.slow), "1"])
@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (vtrace, 320),
        pytest.param(r2d2, 960, marks=pytest.mark.slow),
        pytest.param(ppo, 320, marks=pytest.mark.slow),
    ],
)
def test_half_and_half_is_the_whole(make: Any, steps: int, lag: str, tmp_path: Path) -> None:
    config = make(policy_lag=lag)
    whole = train(config, total_steps=2 * steps)
    half = train(config, total_steps=steps, out=tmp_path / "run")
    resumed = train(config, total_steps=2 * steps, out=tmp_path / "run", resume=True)
    assert half.updates > 0 and whole.updates == resumed.updates > half.updates
    pairs = zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True)
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)
    # As many steps and updates, and the same losses, in each row of metrics.
    names = ("update", "steps", "loss", "gradient_norm", "episodes")
    rows = [tuple(row.get(name) for name in names) for row in half.metrics + resumed.metrics]
    assert rows == [tuple(row.get(name) for name in names) for row in whole.metrics]


@pytest.mark.slow
@pytest.mark.parametrize("lag", ["0", "1"])
def test_exploration_goes_on_where_it_was(lag: str, tmp_path: Path) -> None:
    """It falls in all of the run, which loses what it did after the checkpoint in the middle."""
    out = tmp_path / "run"
    config = tiny_pqn(
        out=out,
        policy_lag=lag,
        total_steps=640,
        exploration_fraction=1.0,
        log_every=5,
        checkpoint=CheckpointConfig(interval=20),
    )
    whole = train(config)
    shutil.rmtree(checkpoints_in(out) / "40")
    resumed = train(config, resume=True)
    assert whole.updates == resumed.updates == 40
    assert_same(resumed.params, whole.params)
    for name in ("update", "loss", "epsilon_max"):
        rows = [row[name] for row in whole.metrics]
        assert [row[name] for row in resumed.metrics] == rows[4:]
    assert rows == sorted(rows, reverse=True) and rows[0] > 0.8 > 0.1 > rows[-1]


def on_hosts(out: Path, hosts: int, steps: int) -> dict[str, np.ndarray]:
    """Train in as many processes; returns the parameters and the number of updates."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    script = str(ROOT / "tests" / "exact_host.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(out), *map(str, (hosts, host, port, steps))],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(hosts)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output
    return dict(np.load(f"{out}.npz"))


@pytest.mark.slow
def test_one_host_two_and_one_again_are_the_whole(tmp_path: Path) -> None:
    whole = on_hosts(tmp_path / "whole", 1, 960)
    begun = on_hosts(tmp_path / "pieces", 1, 320)
    for hosts, steps in ((2, 640), (1, 960)):
        pieces = on_hosts(tmp_path / "pieces", hosts, steps)
    assert pieces.keys() == whole.keys() and pieces["updates"] == whole["updates"] == 30
    for name, expected in whole.items():
        np.testing.assert_allclose(pieces[name], expected, rtol=0, atol=1e-5)
    # It has learned something, of which a piece could have been lost.
    assert max(np.abs(whole[n] - begun[n]).max() for n in whole if n != "updates") > 1e-3
