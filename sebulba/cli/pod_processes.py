"""A pod on one machine: several processes with CPU devices, for development and tests."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from sebulba.runtime.interrupt import Interrupt

_HEARTBEAT = "--heartbeat-seconds"
_PRINT_SECONDS = 2.0
GRACE_SECONDS = 30.0
"""How long the others may take to end after the first process has failed."""


@dataclasses.dataclass(frozen=True)
class Exit:
    """How a process ended; ``code`` is negative for a signal."""

    host: int
    code: int


def run(hosts: int, devices_per_host: int, arguments: Sequence[str]) -> list[Exit]:
    """Run ``sebulba ARGUMENTS`` in ``hosts`` processes; returns their ends in order of time.

    Output lines get the number of their host in front. SIGINT, SIGTERM and SIGHUP are passed on;
    Ctrl-C after that kills the processes. If this one is killed, they get SIGTERM. Once one has
    failed, the others are killed if they have not ended by themselves in time.
    """
    coordinator = f"127.0.0.1:{_free_port()}"
    processes: list[subprocess.Popen[str]] = []
    printers: list[threading.Thread] = []
    try:
        # Before the first start: an interrupt between two of them is passed on to all.
        with Interrupt().listen() as interrupt:
            for host in range(hosts):
                processes.append(_start(host, hosts, devices_per_host, coordinator, arguments))
                printers.append(_print_from(host, processes[-1]))
            return _wait(processes, interrupt)
    finally:
        _kill(processes)
        for process, printer in zip(processes, printers, strict=False):
            printer.join(_PRINT_SECONDS)
            if printer.is_alive():  # A process that a host has started still holds its output.
                _kill_group(process)
                printer.join(_PRINT_SECONDS)


def _start(
    host: int, hosts: int, devices: int, coordinator: str, arguments: Sequence[str]
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONUNBUFFERED": "1",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
        f"--xla_force_host_platform_device_count={devices}",
    }
    join = ["--coordinator", coordinator, "--num-processes", str(hosts), "--process-id", str(host)]
    options = (word.partition("=")[0].replace("_", "-") for word in arguments)
    if _HEARTBEAT not in options:
        join += [_HEARTBEAT, "10"]  # The network of one machine never pauses.
    return subprocess.Popen(
        [sys.executable, "-m", "sebulba.cli.pod_host", str(os.getpid()), *arguments, *join],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Ctrl-C reaches this process, which passes it on once.
        start_new_session=True,
    )


def _print_from(host: int, process: subprocess.Popen[str]) -> threading.Thread:
    def copy(lines: IO[str]) -> None:
        for line in lines:
            # Where nobody reads them any more, the lines must still leave the pipe.
            with contextlib.suppress(OSError):
                print(f"[host {host}] {line}", end="", flush=True)

    assert process.stdout is not None
    thread = threading.Thread(
        target=copy, args=(process.stdout,), name=f"output-{host}", daemon=True
    )
    thread.start()
    return thread


def _wait(processes: Sequence[subprocess.Popen[str]], interrupt: Interrupt) -> list[Exit]:
    exits: list[Exit] = []
    ends: queue.SimpleQueue[Exit] = queue.SimpleQueue()
    for host, process in enumerate(processes):
        _report_end(host, process, ends)
    passed_on, deadline = False, float("inf")
    while len(exits) < len(processes):
        if interrupt.signal is not None and not passed_on:
            passed_on = True
            for process in processes:
                process.send_signal(interrupt.signal)
        with contextlib.suppress(queue.Empty):
            exits.append(ends.get(timeout=0.05))
            if exits[-1].code != 0:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            _kill(processes)
    return exits


def _report_end(host: int, process: subprocess.Popen[str], ends: queue.SimpleQueue[Exit]) -> None:
    """Put the end of a process into ``ends`` when it comes.

    Each process has a thread that waits for it: the end of one may end another within milliseconds,
    and who looked at all of them in turn would not know which was first.
    """
    thread = threading.Thread(
        target=lambda: ends.put(Exit(host, process.wait())), name=f"end-{host}", daemon=True
    )
    thread.start()


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            _kill_group(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # It has ended since.
        os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
