"""What the benchmarks of remote lanes share: environments, processes, files and a report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sebulba.envs import Catch
from sebulba.remote import security
from sebulba.remote.security import Security, SecurityOptions
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep

ROOT = Path(__file__).resolve().parent.parent
PIXELS = ArraySpec((84, 84), np.dtype(np.uint8))
SLEEP_SECONDS = 0.05
PACE_SECONDS = 0.01


class Still:
    """Environments of 84 x 84 pixels that do nothing."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.spec = EnvSpec(PIXELS, DiscreteSpec(6), num_envs)
        self._pixels = np.zeros((num_envs, 84, 84), np.uint8)
        self._ones = np.ones(num_envs, np.float32)
        self._steps = -1
        self._due = 0.0

    def reset(self) -> Timestep:
        return self.step(None)

    def step(self, action: Any) -> Timestep:
        self._steps += 1
        first = np.full(len(self._ones), self._steps % 1000 == 0)
        return Timestep(self._pixels, 0 * self._ones, self._ones, first)

    def close(self) -> None:
        pass


class Paced(Still):
    """``Still`` environments that make 100 steps a second, or as many as they get actions for."""

    def step(self, action: Any) -> Timestep:
        now = time.monotonic()
        due = max(self._due, now)
        time.sleep(due - now)
        self._due = due + PACE_SECONDS
        return super().step(action)


class SleepingCatch(Catch):
    """Catch, each step of which takes 50 ms."""

    def step(self, action: Any) -> Timestep:
        time.sleep(SLEEP_SECONDS)
        return super().step(action)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """``sebulba WORDS``, killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sebulba", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@dataclasses.dataclass(frozen=True)
class Files:
    """What the documented commands make."""

    folder: Path

    @classmethod
    def make(cls, folder: str) -> Files:
        script = security.HOW_TO_MAKE.replace("TRAINER", "localhost")
        subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)
        return cls(Path(folder))

    def of_trainer(self) -> list[str]:
        names = {"--tls-cert": "tls.crt", "--tls-key": "tls.key", "--token-file": "token"}
        return [word for name, file in names.items() for word in (name, str(self.folder / file))]

    def of_host(self) -> list[str]:
        names = {"--ca": "tls.crt", "--token-file": "token"}
        return [word for name, file in names.items() for word in (name, str(self.folder / file))]

    def security(self) -> Security:
        file = self.folder.__truediv__
        options = SecurityOptions(
            tls_cert=file("tls.crt"), tls_key=file("tls.key"), token_file=file("token")
        )
        return options.of_trainer("0.0.0.0:0")


def memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def write(name: str, arguments: Sequence[str] | None, out: Path | None, found: Any) -> None:
    """Print a report, and write it where ``out`` says, without .json."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    report = {
        "command": [f"benchmarks/{name}", *(sys.argv[1:] if arguments is None else arguments)],
        "commit": commit,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        **found,
    }
    print(json.dumps({name: part for name, part in report.items() if name != "rows"}, indent=2))
    if out is not None:
        out.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
