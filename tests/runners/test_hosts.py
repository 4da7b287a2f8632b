"""Two real processes: a fault on one host ends both, soon and with a reason; a delay does not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = pytest.mark.slow

GRACE_SECONDS = 4.0
"""Of ``faulty_host.py``."""


class Host:
    """One process; its output goes to a file, so that it never waits for a reader."""

    def __init__(self, words: list[str], path: Path, environment: dict[str, str]) -> None:
        self._path = path
        with path.open("w") as output:
            self.process = subprocess.Popen(
                words, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def text(self) -> str:
        return self._path.read_text()

    def says(self, text: str) -> None:
        """Wait until it has printed ``text``."""
        deadline = time.monotonic() + 120
        while text not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def ends(self, code: int, seconds: float) -> None:
        """Wait until it ends by itself, with this exit code."""
        try:
            found = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text()}") from None
        assert found == code, self.text()


Start = Callable[..., list[Host]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    hosts: list[Host] = []

    def start(fault: str, seconds: float = 0, **variables: str) -> list[Host]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        environment |= {"PYTHONPATH": str(ROOT), **variables}
        for host in (0, 1):
            words = [str(tmp_path / "run"), str(host), str(port), str(seconds)]
            words = [sys.executable, str(ROOT / "tests" / "faulty_host.py"), fault, *words]
            hosts.append(Host(words, tmp_path / f"host-{host}.txt", environment))
        return hosts

    yield start
    for host in hosts:
        host.process.kill()
        host.process.wait()


@pytest.mark.parametrize("fault", ["late", "lead-late"])
def test_a_host_that_is_through_waits_for_the_other(start: Start, fault: str) -> None:
    hosts = start(fault, seconds=25)
    for host in hosts:
        host.ends(0, 180)
        said = host.text().partition("trained\n")[2]
        # Nothing of an abort; the first one says why it is still there.
        assert said in ("done\n", "done\nsebulba: waiting for the other hosts to end\n"), said


@pytest.mark.parametrize(
    ("fault", "breaks", "grace"),
    [("raises", 1, "30"), ("lead-raises", 0, "30"), ("raises", 1, "4")],
)
def test_a_failure_on_one_host_ends_both_and_is_told(
    start: Start, fault: str, breaks: int, grace: str
) -> None:
    hosts = start(fault, GRACE_SECONDS=grace)
    broken, other = hosts[breaks], hosts[1 - breaks]
    broken.ends(1, 120)
    assert "this host's environment broke" in broken.text()
    assert f"on host {breaks} of 2" in broken.text()
    other.ends(1, 20)
    # Perhaps after "the run has not ended by itself", if no collective operation ended.
    said = "has ended, so this one ends too: RuntimeError: this host's environment broke"
    assert f"host {breaks} {said}" in other.text()


def test_a_host_that_ends_before_it_trains_ends_the_other(start: Start) -> None:
    hosts = start("exits", STALL_SECONDS="8")
    hosts[0].ends(75, 120)
    assert "nothing has moved for" in hosts[0].text()
    hosts[1].ends(3, 20)


def test_a_wrong_environment_on_one_host_ends_both_and_is_told(start: Start) -> None:
    hosts = start("wrong")
    hosts[1].ends(2, 120)
    assert re.search(r"is nan in step \d+: it must be finite", hosts[1].text())
    hosts[0].ends(2, 20)
    assert "host 1 has ended, so this one ends too: ConfigError: the reward" in hosts[0].text()


def test_what_one_host_refuses_all_refuse(start: Start) -> None:
    hosts = start("refuses")
    for host in hosts:
        host.ends(2, 120)
        assert "Traceback" not in host.text()
    assert "error: this host has no such environment: install it" in hosts[1].text()
    assert re.search(r"error: host\(s\) \[1\] could not start, so this one, 0", hosts[0].text())


@pytest.mark.parametrize(("told", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_ends_a_pod_that_stands_still(
    start: Start, told: int, number: signal.Signals
) -> None:
    hosts = start("sleeps")
    hosts[1].says("sleeps")
    time.sleep(1)
    hosts[told].process.send_signal(number)
    sent = time.monotonic()
    for host in hosts:
        host.ends(130, GRACE_SECONDS + 20)
    assert time.monotonic() - sent < GRACE_SECONDS + 20
    who = r"actor-\d has been stepping its environments"
    assert re.search(rf"asked to stop, but {'on host 1, ' * (told == 0)}{who}", hosts[told].text())


def test_the_watchdog_names_the_host_that_stands_still(start: Start) -> None:
    hosts = start("sleeps", STALL_SECONDS="15")
    for host in hosts:
        host.ends(75, 120)
    stood = r"nothing has moved for \d+ s: "
    who = r"actor-\d has been stepping its environments"
    found = [
        re.search(stood + where + who, host.text())
        for where, host in zip(["on host 1, ", ""], hosts, strict=True)
    ]
    # Whichever looks first says it; the other may hear that it has ended.
    assert any(found), hosts[0].text() + hosts[1].text()


def test_a_host_that_pauses_for_a_while_goes_on(start: Start) -> None:
    hosts = start("none")
    hosts[1].process.send_signal(signal.SIGSTOP)
    time.sleep(15)
    hosts[1].process.send_signal(signal.SIGCONT)
    for host in hosts:
        host.ends(0, 180)
