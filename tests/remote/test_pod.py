"""Two trainer hosts, each of which has env-hosts of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from whole_runs import rows_of

Process = subprocess.Popen[str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """To be filled; all are killed at the end."""
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(*words: str) -> Process:
    flags = "--xla_force_host_platform_device_count=1"
    return subprocess.Popen(
        [sys.executable, "-m", "sebulba", *words],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_each_host_of_a_pod_has_env_hosts_of_its_own(
    processes: list[Process], tmp_path: Path
) -> None:
    coordinator, out = f"127.0.0.1:{free_port()}", tmp_path / "run"
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for host, address in enumerate(addresses):
        words = ["--coordinator", coordinator, "--num-processes", "2", "--process-id", str(host)]
        words += ["--listen", address, "--remote-lanes", "1", "--actors-per-device", "0"]
        words += ["--total-steps", "20000", "--log-every", "5", "--out", str(out)]
        processes.append(start("train", "vtrace-catch", *words))
    for address in addresses:
        words = ["--connect", address, "--env", "sebulba/Catch", "--envs", "32"]
        processes.append(start("env-host", *words))
    said = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    for output, address in zip(said[2:], addresses, strict=True):
        assert f"lane 0 of {address}" in output
    last = rows_of(out)[-1]
    # Of the primary host alone: half of the steps came from the other one.
    assert last["steps"] >= 20_000 and last["remote_lanes"] == 1
