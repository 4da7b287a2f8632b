"""Real processes: several hosts of one pod on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from paths import ROOT

from sebulba import read_metrics
from sebulba.cli import pod_processes

slow = pytest.mark.slow

END_SECONDS = 30


def pod(devices_per_host: int) -> list[str]:
    return ["pod", "--hosts", "2", "--devices-per-host", str(devices_per_host), "--", "train"]


POD = pod(4)
SMALL = ["--envs-per-actor", "12", "--batch-size", "12", "--log-every", "20"]


PROGRAM = """
import subprocess, sys
from sebulba.cli import pod_processes

def start(host, *_):
    hangs = "import signal, time; signal.signal(signal.SIGINT, print); print('up'); time.sleep(600)"
    return subprocess.Popen(
        [sys.executable, "-u", "-c", hangs],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )

pod_processes._start = start
pod_processes.run(2, 1, [])
"""


INTERRUPTED_WHILE_IT_STARTS = """
import os, signal, subprocess
from sebulba.cli import pod_processes

def start(host, *_):
    process = subprocess.Popen(
        ["sleep", "600"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    print(process.pid, flush=True)
    if host == 0:
        os.kill(os.getpid(), signal.SIGINT)
    return process

pod_processes._start = start
pod_processes.run(2, 1, [])
"""


WORKERS_OUTLIVE_THEIR_HOST = """
import subprocess, sys
from sebulba.cli import pod_processes

def start(host, *_):
    forks = "import os, time; os.fork() or time.sleep(600); print('done')"
    return subprocess.Popen(
        [sys.executable, "-c", forks], stdout=subprocess.PIPE, text=True, start_new_session=True
    )

pod_processes._PRINT_SECONDS = 0.5
pod_processes._start = start
print(pod_processes.run(1, 1, []))
"""


def environment() -> dict[str, str]:
    """As a user's shell has it: the tests' own eight devices are not the pod's."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


def sebulba(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sebulba", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sebulba", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_checkpoint(out: Path, process: subprocess.Popen[str], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not any(path.name.isdigit() for path in out.glob("checkpoints/*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def children(process: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def end_of(process: subprocess.Popen[str], pids: Sequence[int]) -> tuple[float, str]:
    """Seconds until everything has ended, and what was printed."""
    started = time.monotonic()
    output, _ = process.communicate(timeout=2 * END_SECONDS)
    seconds = time.monotonic() - started
    assert not [pid for pid in pids if is_alive(pid)]
    return seconds, output


@slow
@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize(
    ("preset", "options", "devices_per_host", "layout"),
    [
        ("vtrace-catch", "", 4, "a0-l1,2,3"),
        # Six learner devices on two cores take twice as long for their many updates.
        (
            "r2d2-catch",
            "--batch-size 24 --replay.min-size 200 --replay.samples-per-insert 3",
            2,
            "a0-l1",
        ),
    ],
    ids=["vtrace", "r2d2"],
)
def test_two_hosts_learn_catch(
    tmp_path: Path, preset: str, options: str, devices_per_host: int, layout: str
) -> None:
    out = tmp_path / "run"
    words = [preset, "--total-steps", "120000", *SMALL, *options.split(), "--out", str(out)]
    done = sebulba(*pod(devices_per_host), *words)
    assert done.returncode == 0, done.stdout
    assert f"{layout} (2 hosts" in done.stdout
    evaluated = sebulba("eval", str(out), "--episodes", "300", "--json")
    # In so few steps, policies of one host missed up to 3 of 100 balls: 0.94.
    assert json.loads(evaluated.stdout)["mean"] >= 0.9, evaluated.stdout + evaluated.stderr


def workers(mode: str, out: Path, hosts: int) -> list[subprocess.Popen[str]]:
    port = 20_000 + (os.getpid() * 7 + hosts) % 20_000
    worker = str(ROOT / "tests" / "pod_worker.py")
    return [
        subprocess.Popen(
            [sys.executable, worker, mode, str(out), str(hosts), str(host), str(port)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(hosts)
    ]


@slow
def test_same_bits_on_all_devices_and_what_one_process_learns(tmp_path: Path) -> None:
    for hosts in (1, 2):
        for process in workers("learn", tmp_path, hosts):
            output, _ = process.communicate(timeout=600)
            assert process.returncode == 0, output
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    for preset in ("vtrace-catch", "r2d2-catch", "ppo-cartpole", "pqn-cartpole"):
        per_host = [found[host][preset]["digests"] for host in ("2-0", "2-1")]
        assert [len(digests) for digests in per_host] == [3, 3]
        assert len({digest for digests in per_host for digest in digests}) == 1
        together, alone = (found[name][preset]["learned"] for name in ("2-0", "1-0"))
        scale = max(map(abs, alone))
        assert scale > 1e-3
        assert max(abs(a - b) for a, b in zip(together, alone, strict=True)) <= 1e-5 * scale


@slow
def test_a_host_that_raises_ends_the_other(tmp_path: Path) -> None:
    processes = workers("raise", tmp_path, 2)
    failed, _ = processes[1].communicate(timeout=120)
    assert processes[1].returncode != 0
    assert "this host's environment broke" in failed and "on host 1" in failed
    seconds, _ = end_of(processes[0], [])
    assert seconds < END_SECONDS
    assert processes[0].returncode != 0


@slow
@pytest.mark.parametrize(("number", "resume"), [(signal.SIGKILL, POD), (signal.SIGTERM, ["train"])])
def test_the_end_of_one_host_ends_the_others(
    tmp_path: Path, number: signal.Signals, resume: list[str]
) -> None:
    out = tmp_path / "run"
    words = ["vtrace-catch", *SMALL, "--checkpoint.interval", "20", "--out", str(out)]
    process = start(*POD, *words, "--total-steps", "100000000")
    try:
        wait_for_checkpoint(out, process)
        hosts = children(process)
        assert len(hosts) == 2
        os.kill(hosts[1], number)
        seconds, output = end_of(process, hosts)
    finally:
        process.kill()
    assert seconds < END_SECONDS, output
    if number == signal.SIGKILL:
        assert "host 1 ended first, with signal 9" in output
    else:
        assert "Interrupted" in output
    steps = read_metrics(out)[-1]["steps"]
    done = sebulba(*resume, *words, "--resume", "--total-steps", str(steps + 20_000))
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_metrics(out)[-1]["steps"] > steps


def test_a_second_ctrl_c_ends_processes_that_hang() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    assert {parent.stdout.readline(), parent.stdout.readline()} == {
        "[host 0] up\n",
        "[host 1] up\n",
    }
    for _ in range(2):
        parent.send_signal(signal.SIGINT)
        time.sleep(0.5)
    # All that held the pipe have ended.
    parent.communicate(timeout=20)
    assert parent.returncode != 0


def test_a_pod_ends_although_a_worker_of_a_host_holds_its_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKERS_OUTLIVE_THEIR_HOST],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Exit(host=0, code=0)" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], "10"),
        (["--heartbeat-seconds", "5"], "5"),
        (["--heartbeat-seconds=5"], "5"),
        (["--heartbeat_seconds", "5"], "5"),
    ],
)
def test_the_heartbeat_of_a_pod_can_be_set(
    words: list[str], seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(pod_processes.subprocess, "Popen", lambda words, **_: given.append(words))
    pod_processes._start(0, 2, 4, "here:1", ["train", *words])
    found = [word.replace("_", "-").replace("=", " ") for word in given[0]]
    assert " ".join(found).count(f"--heartbeat-seconds {seconds}") == 1
    assert " ".join(found).count("--heartbeat-seconds") == 1


def test_ctrl_c_between_two_starts_ends_what_has_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_STARTS],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=20,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    left = [pid for pid in pids if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert pids and not left


@slow
def test_hosts_end_with_a_pod_that_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["vtrace-catch", *SMALL, "--checkpoint.interval", "20", "--out", str(out)]
    process = start(*POD, *words, "--total-steps", "100000000")
    hosts: list[int] = []
    try:
        wait_for_checkpoint(out, process)
        hosts = children(process)
        assert len(hosts) == 2
        process.kill()
        deadline = time.monotonic() + END_SECONDS
        while any(map(is_alive, hosts)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for pid in filter(is_alive, hosts):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_a_host_whose_pod_has_ended_does_not_start() -> None:
    words = [sys.executable, "-m", "sebulba.cli.pod_host", str(os.getppid()), "presets"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM and done.stdout == ""
    words[3] = str(os.getpid())
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "vtrace-catch" in done.stdout
