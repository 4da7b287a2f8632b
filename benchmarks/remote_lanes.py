"""How many remote lanes one listener serves: more and more of them, until its core is full.

    python benchmarks/remote_lanes.py

The trainer's side, a listener and one thread for each lane that answers with random actions, has
core 0. Env-hosts have core 1: lanes of 64 environments of 84 x 84 pixels, each of which makes 100
steps a second and computes nothing. For each message they have as much to do as the trainer, so its
core would never be full. Therefore it may use only half of it, and half as many lanes fill that:
the kernel then stops it in nearly every period. Needs root and control groups of version 1.
OUT.json holds the raw numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from remote_parts import PIXELS, Files, running, write

from sebulba.remote.handshake import facts
from sebulba.remote.listener import Listener
from sebulba.remote.security import Security
from sebulba.runtime.queues import ShutDown
from sebulba.types import DiscreteSpec, EnvSpec

TRAINER_CORE, HOSTS_CORE = 0, 1
GROUP = Path("/sys/fs/cgroup/cpu/remote_lanes")
PERIOD_US = 10_000
ENV, ENVS, LANES_PER_HOST = "remote_parts:Paced", 64, 4


@dataclasses.dataclass
class Options:
    lanes: tuple[int, ...] = (2, 4, 6, 8, 10, 12, 16, 20)
    repeats: int = 3
    """How often each is measured, in alternation."""
    seconds: float = 6.0
    """Of each measurement."""
    share: float = 0.5
    """Of core 0, for the trainer's side."""
    out: Path | None = None
    """Where to write, without .json."""


def measure(options: Options, files: Files) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with limited(options.share):
        for _ in range(options.repeats):
            for lanes in options.lanes:
                for encrypted in (False, True):
                    rows.append(measure_once(options, files, lanes, encrypted))
                    print(rows[-1], flush=True)
    return {"rows": rows}


def measure_once(options: Options, files: Files, lanes: int, encrypted: bool) -> dict[str, Any]:
    spec = EnvSpec(PIXELS, DiscreteSpec(6), ENVS)
    security = files.security() if encrypted else Security()
    what = facts(ENV, {}, "machado", spec)
    listener = Listener(
        *("127.0.0.1:0", security, what, spec, range(lanes)), step_seconds=60, ends_run=False
    )
    words = ["--connect", f"localhost:{listener.open()}", "--env", ENV, "--envs", str(ENVS)]
    words += files.of_host() if encrypted else []
    steps = [0] * lanes
    actors = [threading.Thread(target=act, args=(listener, lane, steps)) for lane in range(lanes)]
    for actor in actors:
        actor.start()
    with contextlib.ExitStack() as stack:
        hosts = [
            stack.enter_context(running("env-host", *words, "--lanes", str(count)))
            for count in cut(lanes)
        ]
        for host in hosts:
            move(host.pid, GROUP.parent)
            os.sched_setaffinity(host.pid, {HOSTS_CORE})
        while min(steps) < 10:
            time.sleep(0.1)
        time.sleep(1)
        before = seen(listener, steps, [host.pid for host in hosts])
        time.sleep(options.seconds)
        after = seen(listener, steps, [host.pid for host in hosts])
        listener.close(is_complete=True)
    for actor in actors:
        actor.join()
    seconds = after["at"] - before["at"]
    share = {name: (after[name] - before[name]) / seconds for name in after}
    return {
        "encrypted": encrypted,
        "lanes": lanes,
        "steps_per_second": share["steps"] * ENVS,
        "steps_per_second_of_a_lane": share["steps"] / lanes,
        # Of a core.
        "trainer_cpu": share["cpu"],
        "listener_thread_cpu": share["thread"],
        "periods_in_which_the_trainer_was_stopped": share["nr_throttled"] / share["nr_periods"],
        "hosts_cpu": share["hosts"],
    }


def cut(lanes: int) -> list[int]:
    """So many lanes, as those of several env-hosts."""
    whole, rest = divmod(lanes, LANES_PER_HOST)
    return [LANES_PER_HOST] * whole + [rest] * (rest > 0)


def act(listener: Listener, lane: int, steps: list[int]) -> None:
    """What an actor does with its environments, but without a network."""
    env = listener.make_env(lane)(ENVS, lane)
    actions = np.random.default_rng(lane).integers(0, 6, (100, ENVS), dtype=np.int32)
    with contextlib.suppress(ShutDown):
        env.reset()
        while True:
            env.step(actions[steps[lane] % 100])
            steps[lane] += 1


def seen(listener: Listener, steps: Sequence[int], hosts: Sequence[int]) -> dict[str, float]:
    """Counts and seconds so far."""
    (thread,) = (each for each in threading.enumerate() if each.name == "listener")
    run = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
    return {
        "at": time.monotonic(),
        "steps": float(sum(steps)),
        "cpu": time.process_time(),
        "thread": int(run) / 1e9,
        "hosts": sum(cpu_seconds(pid) for pid in hosts),
        **periods(),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def limited(share: float) -> Iterator[None]:
    """Let this process use only a share of one core."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (GROUP / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD_US)))
    move(os.getpid(), GROUP)
    try:
        yield
    finally:
        move(os.getpid(), GROUP.parent)
        GROUP.rmdir()


def move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def periods() -> dict[str, float]:
    """How many there were, and in how many the trainer was stopped since it had used its share."""
    lines = (GROUP / "cpu.stat").read_text().splitlines()
    counts = dict(line.split() for line in lines)
    return {name: float(counts[name]) for name in ("nr_periods", "nr_throttled")}


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, args=arguments, description=__doc__)
    os.sched_setaffinity(0, {TRAINER_CORE})
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Files.make(folder))
    write("remote_lanes.py", arguments, options.out, found)


if __name__ == "__main__":
    main()
