"""Faults of one of two hosts, and of what is between them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fault import ROOT, RUN, Running, checkpoints, fault, resumes, sebulba, small, steps
from faults import FROM_CHECKPOINT, NOTHING

BOTH = "both processes end"
GRACE_SECONDS = 4.0
"""Of tests/faulty_host.py."""


@contextlib.contextmanager
def pod(
    kind: str, late: float = 0, within: str = "", **environment: str
) -> Iterator[list[Running]]:
    """Two processes that train Catch with a fault of tests/faulty_host.py."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with contextlib.ExitStack() as stack:
        hosts = []
        for host in (0, 1):
            words = [sys.executable, str(ROOT / "tests" / "faulty_host.py"), kind, RUN]
            words += [str(host), str(port), str(late)]
            if within:
                words = ["ip", "netns", "exec", f"{within}{host}", *words]
            hosts.append(stack.enter_context(Running(words, f"host-{host}", **environment)))
        yield hosts


def training(hosts: list[Running]) -> None:
    """Wait until both train, and a checkpoint is there."""
    for host in hosts:
        host.wait_for(checkpoints, 180)


@fault(
    "an environment of one host raises",
    "an exception in its step 300",
    f"{BOTH}, exit code 1; the other names the host and its exception",
    FROM_CHECKPOINT,
)
def host_raises(chance: random.Random) -> float:
    with pod("raises") as hosts:
        hosts[1].says("this host's environment broke", 180)
        start = time.monotonic()
        for host in hosts:
            host.end(30, code=1)
        assert "error: host 1 has ended, so this one ends too: RuntimeError" in hosts[0].text()
        return time.monotonic() - start


@fault(
    "an environment of one host hangs",
    "a step sleeps for ever, with `--stall-seconds 15`",
    f"{BOTH}, exit code 75; host and actor are named",
    FROM_CHECKPOINT,
)
def host_hangs(chance: random.Random) -> float:
    with pod("sleeps", STALL_SECONDS="15") as hosts:
        hosts[1].says("sleeps", 180)
        start = time.monotonic()
        for host in hosts:
            host.end(60, code=75)
        assert "has been stepping its environments" in hosts[0].text() + hosts[1].text()
        return time.monotonic() - start


@fault(
    "a signal while one host hangs",
    "SIGTERM to either host while an environment of one sleeps for ever",
    f"{BOTH} after the grace period, exit code 130",
    FROM_CHECKPOINT,
)
def signal_while_host_hangs(chance: random.Random) -> float:
    with pod("sleeps") as hosts:
        hosts[1].says("sleeps", 180)
        time.sleep(1)
        hosts[chance.randrange(2)].send(signal.SIGTERM)
        start = time.monotonic()
        for host in hosts:
            host.end(GRACE_SECONDS + 20, code=130)
        return time.monotonic() - start


@fault(
    "preemption of one host",
    "SIGTERM to one of two at a random moment",
    "both stop after the same turn, with a checkpoint, exit code 130",
    NOTHING,
)
def host_preempted(chance: random.Random) -> float:
    with pod("for ever") as hosts:
        training(hosts)
        time.sleep(chance.uniform(0, 1))
        hosts[chance.randrange(2)].send(signal.SIGTERM)
        start = time.monotonic()
        for host in hosts:
            host.end(30, code=130)
        return time.monotonic() - start


@fault(
    "preemption while the hosts start",
    "SIGTERM to one of two while the learner is built",
    "both stop after the first turn, exit code 130",
    NOTHING,
)
def host_preempted_early(chance: random.Random) -> float:
    with pod("for ever") as hosts:
        hosts[0].says("is connected to 1 peer ranks", 120)
        time.sleep(chance.uniform(0.5, 1.5))
        hosts[chance.randrange(2)].send(signal.SIGTERM)
        start = time.monotonic()
        for host in hosts:
            host.end(60, code=130)
        return time.monotonic() - start


@fault(
    "kill -9 of one host",
    "at a random moment of a run that writes checkpoints",
    f"the other ends too; {'`--resume` goes on from the last complete checkpoint'}",
    FROM_CHECKPOINT,
    times=20,
)
def host_killed(chance: random.Random) -> float:
    with pod("for ever", HEARTBEAT_SECONDS="10") as hosts:
        training(hosts)
        time.sleep(chance.uniform(0, 2))
        victim = chance.randrange(2)
        hosts[victim].kill()
        start = time.monotonic()
        # JAX ends what has lost its coordinator by SIGABRT.
        hosts[1 - victim].end(60, code=(1, -6))
        seconds = time.monotonic() - start
    _both_resume()
    return seconds


def _both_resume() -> None:
    """The run goes on with two processes, to an end."""
    # Far beyond the last row, since the last checkpoint may be of some updates later.
    with pod("none", STEPS=str(steps() + 12_000), RESUME="1") as hosts:
        for host in hosts:
            host.end(120)


@fault("one host pauses", "SIGSTOP for 30 s, then SIGCONT", "training goes on", NOTHING, times=3)
def host_paused(chance: random.Random) -> None:
    with pod("none", STEPS="60000") as hosts:
        training(hosts)
        host = hosts[chance.randrange(2)]
        host.send(signal.SIGSTOP)
        time.sleep(30)
        host.send(signal.SIGCONT)
        for host in hosts:
            host.end(200)


@fault(
    "hosts end far apart",
    "one evaluates for 20 s after training, the other has nothing to do",
    "both end well",
    NOTHING,
    times=3,
)
def hosts_end_apart(chance: random.Random) -> None:
    with pod(chance.choice(["late", "lead-late"]), late=20) as hosts:
        for host in hosts:
            host.end(200)
            assert "done" in host.text()


@fault(
    "one host refuses the config",
    "its environment cannot be made",
    "both refuse within seconds, exit code 2, with the reason and the host's number",
    NOTHING,
)
def host_refuses(chance: random.Random) -> float:
    start = time.monotonic()
    with pod("refuses") as hosts:
        for host in hosts:
            host.end(120, code=2)
            assert "Traceback" not in host.text()
        return time.monotonic() - start


@fault(
    "hosts do not share the run directory",
    "each has a working directory of its own",
    "both refuse, exit code 2, with the numbers of the hosts that do not see it",
    NOTHING,
)
def separate_directories(chance: random.Random) -> float:
    start = time.monotonic()
    with pod("apart") as hosts:
        for host in hosts:
            host.end(180, code=2)
        return time.monotonic() - start


@fault(
    "the network between two hosts is cut",
    "two network namespaces, whose link is taken down",
    f"{BOTH} once the heartbeat (10 s here) or the watchdog (20 s) has run out",
    FROM_CHECKPOINT,
    times=3,
)
def network_cut(chance: random.Random) -> float:
    with _namespaces() as name:
        settings = {"COORDINATOR": "10.9.0.1", "HEARTBEAT_SECONDS": "10", "STALL_SECONDS": "20"}
        with pod("for ever", within=name, **settings) as hosts:
            training(hosts)
            _ip("-n", f"{name}1", "link", "set", f"{name}v1", "down")
            start = time.monotonic()
            for host in hosts:
                host.end(120, code=(1, 75, -6, 134))
            return time.monotonic() - start


@contextlib.contextmanager
def _namespaces() -> Iterator[str]:
    """The stem of the names of two network namespaces with a link between them. Needs root."""
    name = f"s{os.getpid() % 100_000}-"
    try:
        for host in (0, 1):
            _ip("netns", "add", f"{name}{host}")
            # What `ip netns exec` puts in the place of /etc/hosts: Gloo listens at the host's name.
            hosts = Path("/etc/netns", f"{name}{host}")
            hosts.mkdir(parents=True)
            address = f"10.9.0.{host + 1}"
            (hosts / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        ends = [("add", f"{name}v0", "netns", f"{name}0"), (f"{name}v1", "netns", f"{name}1")]
        _ip("link", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for host in (0, 1):
            inside = ("-n", f"{name}{host}")
            _ip(*inside, "addr", "add", f"10.9.0.{host + 1}/24", "dev", f"{name}v{host}")
            _ip(*inside, "link", "set", f"{name}v{host}", "up")
            _ip(*inside, "link", "set", "lo", "up")
        yield name
    finally:
        for host in (0, 1):
            subprocess.run(["ip", "netns", "del", f"{name}{host}"], check=False)
            subprocess.run(["rm", "-rf", f"/etc/netns/{name}{host}"], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@fault(
    "`sebulba pod` is killed",
    "kill -9 of the parent of two local hosts",
    "its hosts end too",
    FROM_CHECKPOINT,
)
def pod_killed(chance: random.Random) -> float:
    with sebulba("pod", "--hosts", "2", "--devices-per-host", "2", "--", *small()) as run:
        run.wait_for(checkpoints, 180)
        children = _children(run.process.pid)
        assert len(children) == 2
        run.process.kill()
        run.process.wait()
        start = time.monotonic()
        while any(_is_alive(pid) for pid in children):
            assert time.monotonic() - start < 60, "the hosts of a killed pod go on"
            time.sleep(0.1)
        return time.monotonic() - start


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@fault(
    "a run goes on with other hosts",
    "one process, then two, then one again",
    "the run goes on",
    NOTHING,
    times=3,
)
def other_hosts(chance: random.Random) -> None:
    with sebulba(*small("--total-steps", "6000")) as run:
        run.end(120)
    resumes(pod=2)
    resumes()


@fault(
    "JAX is used before the hosts are joined",
    "SLURM's variables for two tasks, `jax.devices()`, then `initialize()`",
    "refused, with the remedy",
    NOTHING,
)
def joined_late(chance: random.Random) -> float:
    from fault import program

    start = time.monotonic()
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}
    with program("import jax, sebulba\njax.devices()\nsebulba.initialize()\n", **slurm) as run:
        run.end(60, code=1)
        assert "SLURM runs 2 processes" in run.text(), run.text()
    return time.monotonic() - start
