"""Several hosts and one run directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT
from whole_runs import tiny

from sebulba import ConfigError
from sebulba.rundir import place
from sebulba.rundir.directory import RunDirectory


def as_host(number: int, blind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is host ``number`` of two, whose host 1 sees nothing if it is ``blind``."""

    def gather(mine: np.ndarray) -> np.ndarray:
        is_answer = mine.dtype == bool and mine.ndim == 0
        other = np.array(blind) if is_answer else mine
        return np.stack([mine, other] if number == 0 else [other, mine])

    for module in ("sebulba.rundir.place", "sebulba.devices.distributed"):
        monkeypatch.setattr(f"{module}.gather", gather)
    monkeypatch.setattr(place, "num_hosts", lambda: 2)
    monkeypatch.setattr(place, "SEEN_SECONDS", 0.5)


def test_hosts_that_do_not_see_it_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_host(0, True, monkeypatch)
    with pytest.raises(ConfigError, match=rf"host\(s\) \[1\] do not see .*{tmp_path}.*--out"):
        RunDirectory(tiny(out=tmp_path / "run"), "vtrace")
    assert list((tmp_path / "run").iterdir()) == []


def test_the_mark_is_removed_where_all_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_host(0, False, monkeypatch)
    RunDirectory(tiny(out=tmp_path), "vtrace").finish()
    assert list(tmp_path.iterdir()) == []


def test_what_the_primary_cannot_write_is_refused_on_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(mine: np.ndarray) -> np.ndarray:
        return np.stack([np.ones_like(mine), mine])  # Host 0 has failed.

    with RunDirectory(tiny(out=tmp_path), "vtrace") as directory, monkeypatch.context() as host_1:
        host_1.setattr("sebulba.devices.distributed.gather", gather)
        host_1.setattr("sebulba.rundir.directory.is_primary", lambda: False)
        with pytest.raises(ConfigError, match=r"host\(s\) \[0\] could not start"):
            directory.begin(0)


def hosts(tmp_path: Path, *words: str) -> list[subprocess.CompletedProcess[str]]:
    """``sebulba train`` on two hosts, each with a working directory of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    port = 20_000 + (os.getpid() * 11) % 20_000
    join = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id"]
    small = ["--envs-per-actor", "4", "--batch-size", "4", "--network.hidden-sizes", "8"]
    processes = []
    for host in range(2):
        (tmp_path / str(host)).mkdir(exist_ok=True)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sebulba", "train", "vtrace-catch", "--out", "run"),
                *small,
                *words,
                *join,
                str(host),
            ],
            cwd=tmp_path / str(host),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
    try:
        return [
            subprocess.CompletedProcess("", process.wait(120), process.stdout.read())
            for process in processes
            if process.stdout is not None
        ]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_hosts_with_disks_of_their_own_are_refused(tmp_path: Path) -> None:
    words = ["--total-steps", "4000", "--checkpoint.interval", "5"]
    for end in hosts(tmp_path, *words):
        assert end.returncode == 2, end.stdout
        assert "host(s) [1] do not see" in " ".join(end.stdout.replace("│", " ").split())
    assert list((tmp_path / "0" / "run").iterdir()) == []
    (tmp_path / "1" / "run").symlink_to(tmp_path / "0" / "run")
    for end in hosts(tmp_path, *words):
        assert end.returncode == 0, end.stdout
    # A copy has what there is to resume, and does not see what the others write.
    (tmp_path / "1" / "run").unlink()
    shutil.copytree(tmp_path / "0" / "run", tmp_path / "1" / "run")
    for end in hosts(tmp_path, "--total-steps", "8000", "--resume"):
        assert end.returncode == 2, end.stdout
