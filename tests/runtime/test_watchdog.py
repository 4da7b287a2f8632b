"""Who is said to stand still, and what counts as moving."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from paths import ROOT

from sebulba.runtime import watchdog as module
from sebulba.runtime.activity import EVALUATION, OTHERS, Activities
from sebulba.runtime.interrupt import Interrupt
from sebulba.runtime.watchdog import Alone, HostError, StallError, Watchdog, exit_code


class Hosts(Alone):
    """Two other hosts, which say ``said``, and may have failed."""

    def __init__(self, said: dict[int, str], failure: HostError | None = None) -> None:
        self.said, self.failure = said, failure
        self.told: list[str] = []
        self.failed: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(text)

    def tell_failure(self, text: str, code: int) -> None:
        self.failed.append(text)

    def heard(self) -> dict[int, str]:
        return self.said

    def first_failure(self) -> HostError | None:
        return self.failure


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)


def error_of(dog: Watchdog, seconds: float = 10) -> Exception:
    """What the watchdog wants the run to end by."""
    deadline = time.monotonic() + seconds
    while dog.error is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(type(dog.error)):
        dog.check()
    return dog.error


def test_the_actor_that_the_learner_waits_for_is_named() -> None:
    dog = Watchdog(0.3, 60, Interrupt())
    dog.activities.of_actor("actor-0").set("waiting for room in its queue")
    dog.activities.of_actor("actor-1").set("stepping its environments")
    dog.activities.learner.set("waiting for actor-1", waits_for="actor-1")
    with dog.watch():
        error = error_of(dog)
    assert "actor-1 has been stepping its environments for " in str(error)
    assert exit_code(error) == 75


@pytest.mark.parametrize(
    ("said", "culprit"),
    [
        ({1: OTHERS, 2: "actor-3 has been acting for 9 s"}, "on host 2, actor-3 has been acting"),
        ({1: OTHERS, 2: OTHERS}, "the learner has been starting an update"),
        ({}, "the learner has been starting an update"),
    ],
)
def test_the_host_that_holds_the_others_up_is_named(said: dict[int, str], culprit: str) -> None:
    hosts = Hosts(said)
    dog = Watchdog(0.2, 60, Interrupt(), hosts)
    dog.activities.learner.set("starting an update", waits_for=OTHERS)
    with dog.watch():
        assert culprit in str(error_of(dog))
    assert set(hosts.told) == {OTHERS}


def test_a_host_says_who_holds_it_up() -> None:
    hosts = Hosts({})
    dog = Watchdog(0, 60, Interrupt(), hosts)
    dog.activities.of_actor("actor-0").set("acting")
    dog.activities.learner.set("waiting for actor-0", waits_for="actor-0")
    with dog.watch():
        while not hosts.told:
            time.sleep(0.01)
    assert hosts.told[0].startswith("actor-0 has been acting for")


def test_the_failure_of_another_host_ends_the_run_with_its_code() -> None:
    failure = HostError("host 1 has ended", 130)
    dog = Watchdog(0, 60, Interrupt(), Hosts({}, failure))
    with dog.watch():
        assert error_of(dog) is failure
    assert exit_code(failure) == 130


def ends_within(dog: Watchdog, seconds: float) -> bool:
    with dog.watch():
        time.sleep(seconds)
        return dog.error is not None


def test_what_moves_is_left_alone() -> None:
    dog = Watchdog(0.4, 60, Interrupt())
    done = threading.Event()

    def move() -> None:
        while not done.wait(0.1):
            dog.activities.learner.set("publishing parameters")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        assert not ends_within(dog, 1)
    finally:
        done.set()
        mover.join()


def test_a_run_that_moves_while_the_other_hosts_are_asked_is_left_alone() -> None:
    class Slow(Hosts):
        def heard(self) -> dict[int, str]:
            dog.activities.learner.set("publishing parameters")
            return self.said

    dog = Watchdog(0.2, 60, Interrupt(), Slow({}))
    assert not ends_within(dog, 1)


def test_an_evaluation_that_stands_still_ends_the_run_though_the_learner_moves() -> None:
    dog = Watchdog(0.4, 60, Interrupt())
    dog.activities.evaluation.set("playing its episodes")
    with dog.watch():
        while dog.error is None:
            dog.activities.learner.set("publishing parameters")
            time.sleep(0.05)
    assert "the evaluation has been playing its episodes" in str(dog.error)
    dog.activities.evaluation.set("idle", idle=True)
    assert "evaluation" not in dog.activities.describe()


def test_files_of_another_host_excuse_no_evaluation_that_stands_still() -> None:
    class Moving(Hosts):
        def heard(self) -> dict[int, str]:
            return {1: f"reading or writing files, {time.monotonic()} bytes so far"}

    dog = Watchdog(0.4, 60, Interrupt(), Moving({}))
    dog.activities.evaluation.set("playing its episodes")
    dog.activities.learner.set("waiting for the evaluation", waits_for=EVALUATION)
    with dog.watch():
        assert "the evaluation has been playing" in str(error_of(dog))


def test_hosts_have_patience_while_one_evaluates() -> None:
    hosts = Hosts({})
    dog = Watchdog(0, 60, Interrupt(), hosts)
    dog.activities.learner.set("waiting for the evaluation", waits_for=EVALUATION)
    with dog.watch():
        while not hosts.told:
            time.sleep(0.01)
    other = Watchdog(0.2, 60, Interrupt(), Hosts({0: hosts.told[0]}))
    other.activities.learner.set("starting an update", waits_for=OTHERS)
    assert not ends_within(other, 1)


def test_a_host_that_waits_says_that_it_was_asked_to_stop() -> None:
    interrupt, hosts = Interrupt(), Hosts({})
    interrupt.signal, interrupt.at = signal.SIGTERM, time.monotonic()
    dog = Watchdog(0, 60, interrupt, hosts)
    dog.activities.learner.set("starting an update", waits_for=OTHERS)
    with dog.watch():
        while not hosts.told:
            time.sleep(0.01)
    other = Watchdog(0, 60, Interrupt(), Hosts({1: hosts.told[0]}))
    assert other.is_asked_to_stop() and not Watchdog(0, 60, Interrupt()).is_asked_to_stop()


STOPPED = """
import os, signal, subprocess, time
from sebulba.runtime import watchdog
from sebulba.runtime.interrupt import Interrupt

watchdog._LATE_SECONDS = 0.5
dog = watchdog.Watchdog(1.5, 60, Interrupt())
with dog.watch():
    dog.activities.evaluation.set(EVALUATION, idle=IDLE)
    continued = subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)
    assert continued.wait() == 0 and dog.error is None, dog.error
    give_up = time.monotonic() + 20
    while dog.error is None and time.monotonic() < give_up:
        time.sleep(0.01)
    assert "nothing has moved" in str(dog.error)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_process_that_was_stopped_may_go_on(evaluates: bool) -> None:
    """As with Ctrl-Z and fg: it could not move, and does so a moment later."""
    program = STOPPED.replace("EVALUATION", repr("evaluating")).replace("IDLE", str(not evaluates))
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_a_stall_is_noticed_though_every_look_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where native code holds Python's lock for seconds again and again."""

    class Late(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(0.1 + (timeout or 0))

    monkeypatch.setattr(module, "_LATE_SECONDS", 0.05)
    dog = Watchdog(0.2, 60, Interrupt())
    dog._ended = Late()
    with dog.watch():
        error_of(dog)


def test_without_a_limit_nothing_is_too_long() -> None:
    assert not ends_within(Watchdog(0, 60, Interrupt()), 0.5)


def test_writing_may_take_as_long_as_bytes_are_written(tmp_path: Path) -> None:
    dog = Watchdog(0.4, 60, Interrupt())
    dog.activities.learner.set("writing a checkpoint", files=True)
    with dog.watch(), (tmp_path / "file").open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(bytes(1 << 18))
            time.sleep(0.02)
        assert dog.error is None
        error_of(dog)


@pytest.mark.parametrize("is_asked_to_stop", [False, True])
def test_hosts_wait_for_one_that_moves_files(
    is_asked_to_stop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do that are through with their parts of a checkpoint."""
    writing = Hosts({})
    dog = Watchdog(0, 0.2, Interrupt(), writing)
    dog.activities.learner.set("writing a checkpoint", waits_for=OTHERS, files=True)
    with dog.watch(), (tmp_path / "file").open("wb", buffering=0) as file:
        for _ in range(10):
            file.write(bytes(1 << 18))
            time.sleep(0.02)
        said = writing.told[-1]
        time.sleep(0.5)
    assert re.fullmatch(r"reading or writing files, [\d,]+ bytes so far", said)
    assert writing.told[-1] == OTHERS

    ended: list[int] = []
    monkeypatch.setattr(module.os, "_exit", ended.append)

    class Moving(Hosts):
        moves = True

        def heard(self) -> dict[int, str]:
            return {0: f"{said}, {time.monotonic()}" if self.moves else said}

    interrupt, hosts = Interrupt(), Moving({})
    if is_asked_to_stop:
        interrupt.signal, interrupt.at = signal.SIGTERM, time.monotonic()
    waiting = Watchdog(0.2, 0.2, interrupt, hosts)
    waiting.activities.learner.set("writing a checkpoint", waits_for=OTHERS, files=True)
    with waiting.watch():
        time.sleep(1)
        assert waiting.error is None and not ended
        hosts.moves = False  # As if that host were gone: its last words stay.
        deadline = time.monotonic() + 10
        while waiting.error is None and not ended:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert (ended[:1] == [130]) if is_asked_to_stop else isinstance(waiting.error, StallError)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_compiling_may_take_longer(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts({1: "compiling"} if where == "elsewhere" else {})
    dog = Watchdog(0.3, 60, Interrupt(), hosts)
    if where == "here":
        monkeypatch.setattr(module, "_COMPILER", str(Path(__file__).name))
    with dog.watch():
        time.sleep(0.9)
        assert dog.error is None
        error_of(dog)


def test_what_each_thread_does_is_described() -> None:
    activities = Activities()
    activities.learner.set("publishing parameters")
    activities.of_actor("actor-0").set("acting")
    lines = activities.describe().splitlines()
    assert [line.split(" for ")[0] for line in lines] == [
        "  the learner has been publishing parameters",
        "  actor-0 has been acting",
    ]


def test_reading_may_take_as_long_as_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 24))
    dog = Watchdog(0.4, 60, Interrupt())
    dog.activities.learner.set("reading the replay", files=True)
    with dog.watch(), (tmp_path / "file").open("rb", buffering=0) as file:
        for _ in range(50):
            file.read(1 << 18)
            time.sleep(0.02)
        assert dog.error is None
        error_of(dog)


NOBODY_READS = """
import os, time
from sebulba.runtime import watchdog
from sebulba.runtime.interrupt import Interrupt

watchdog._PRINT_SECONDS = 0.5
dog = watchdog.Watchdog(0.5, 0.5, Interrupt())
read, write = os.pipe()
os.dup2(write, 2)
os.set_blocking(write, False)
try:
    while True:
        os.write(write, bytes(1 << 16))
except BlockingIOError:
    os.set_blocking(write, True)
with dog.watch():
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_run_ends_although_nobody_reads_what_it_prints() -> None:
    done = subprocess.run([sys.executable, "-c", NOBODY_READS], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 75


def test_a_failure_of_another_host_is_not_told_again() -> None:
    """Otherwise the others would name this host as the cause."""
    ended: list[int] = []
    hosts = Hosts({}, HostError("host 1 has ended", 3))
    dog = Watchdog(60, 0.1, Interrupt(), hosts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.os, "_exit", ended.append)
        with dog.watch():
            deadline = time.monotonic() + 10
            while not ended:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    assert ended[0] == 3
    assert hosts.failed == []
