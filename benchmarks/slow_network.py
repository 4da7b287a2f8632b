"""Train Catch over a network that is slow and loses packets.

    python benchmarks/slow_network.py    # as root, on Linux, with iproute2

Two network namespaces, one for the trainer and one for the env-hosts, are joined by a process that
hands packets from one to the other. It holds each back for half of ROUND-TRIP, and drops LOSS of
them at random. So TCP really waits and sends again, as between machines that are far apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import heapq
import json
import os
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import tyro
from remote_parts import ROOT, write

from sebulba import evaluate_run

TRAINER, HOSTS = "sebulba-trainer", "sebulba-hosts"
ADDRESSES = {TRAINER: "10.77.0.1", HOSTS: "10.77.0.2"}
PORT = 7777
# From linux/if_tun.h and linux/sched.h.
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


@dataclasses.dataclass
class Options:
    round_trip: float = 0.02
    """Seconds of delay in both directions together."""
    loss: float = 0.01
    """Share of packets that are dropped, in each direction."""
    total_steps: int = 200_000
    """Of the training."""
    compress: Literal["none", "lz4"] = "none"
    """As of env-host."""
    lanes: int = 2
    """Env-hosts, of one lane each."""
    out: Path | None = None
    """Where to write, without .json."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def namespaces() -> Iterator[dict[str, int]]:
    """Both, each with a device whose packets come out of the file descriptor."""
    made: dict[str, int] = {}
    try:
        for name, address in ADDRESSES.items():
            ip("netns", "add", name)
            made[name] = tun(name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", "tun0")
            ip("-n", name, "link", "set", "tun0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield made
    finally:
        for name, descriptor in made.items():
            os.close(descriptor)
            ip("netns", "delete", name)


def tun(namespace: str) -> int:
    """A new device ``tun0`` in ``namespace``."""
    made: list[int] = []

    def make() -> None:
        # Only this thread moves into the namespace.
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{namespace}") as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", b"tun0", IFF_TUN | IFF_NO_PI))
        made.append(descriptor)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def forward(
    ends: Sequence[int], options: Options, counts: dict[str, int], ended: threading.Event
) -> None:
    """Hand packets from each end to the other."""
    rng = random.Random(0)
    other = dict(zip(ends, reversed(ends), strict=True))
    waiting: list[tuple[float, int, int, bytes]] = []
    while not ended.is_set():
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, end, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # As any network, it drops what finds no room.
                os.write(end, packet)
        pause = waiting[0][0] - now if waiting else 0.1
        for end in select.select(ends, [], [], pause)[0]:
            packet = os.read(end, 65536)
            counts["packets"] += 1
            if rng.random() < options.loss:
                counts["dropped"] += 1
                continue
            due = time.monotonic() + options.round_trip / 2
            heapq.heappush(waiting, (due, counts["packets"], other[end], packet))


def sebulba(namespace: str, *words: str, **pipes: Any) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "sebulba", *words]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def train(options: Options, out: Path) -> tuple[str, float]:
    """What the trainer says, and the seconds that it takes."""
    address = f"{ADDRESSES[TRAINER]}:{PORT}"
    words = ["train", "vtrace-catch", "--remote-lanes", str(options.lanes), "--out", str(out)]
    words += ["--actors-per-device", "0", "--min-lanes", str(options.lanes), "--insecure"]
    words += ["--listen", address, "--total-steps", str(options.total_steps), "--log-every", "50"]
    host = ["env-host", "--connect", address, "--env", "sebulba/Catch", "--insecure"]
    host += ["--compress", options.compress]
    hosts = [
        sebulba(HOSTS, *host, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(options.lanes)
    ]
    try:
        start = time.monotonic()
        trainer = sebulba(TRAINER, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = trainer.communicate()
        assert trainer.returncode == 0, said
        return said, time.monotonic() - start
    finally:
        for process in hosts:
            process.kill()
            process.wait()


def over_slow_network(options: Options, out: Path) -> dict[str, Any]:
    """The numbers of a training that writes to ``out``."""
    counts, ended = {"packets": 0, "dropped": 0}, threading.Event()
    with namespaces() as ends:
        forwarding = (list(ends.values()), options, counts, ended)
        thread = threading.Thread(target=forward, args=forwarding)
        thread.start()
        try:
            said, seconds = train(options, out)
        finally:
            ended.set()
            thread.join()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    half = rows[len(rows) // 2 :]

    def median(name: str) -> float:
        return statistics.median(row[name] for row in half)

    return {
        **counts,
        "seconds": seconds,
        "steps_per_second": median("steps_per_second"),
        "round_trip_seconds": median("remote_lane_0_round_trip_seconds"),
        "bytes_per_second": median("remote_lane_0_bytes_per_second"),
        "lanes_lost": said.count(" is lost"),
        "evaluation": evaluate_run(out, episodes=100).summary(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, args=arguments, description=__doc__)
    with tempfile.TemporaryDirectory() as folder:
        found = over_slow_network(options, Path(folder) / "run")
    write("slow_network.py", arguments, options.out, found)


if __name__ == "__main__":
    main()
