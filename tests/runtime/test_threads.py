"""A thread's first failure reaches the caller."""

from __future__ import annotations

import threading
import time
import traceback

import jax.numpy as jnp
import pytest

from sebulba.runtime.queues import ShutDown
from sebulba.runtime.threads import ThreadGroup, wait_until_ready


def boom() -> None:
    raise ValueError("boom")


def test_the_first_failure_stops_the_others_and_is_raised_as_it_was() -> None:
    group = ThreadGroup(10)
    woken = threading.Event()
    group.on_stop(woken.set)

    def waits() -> None:
        woken.wait()
        raise RuntimeError("a consequence, not the cause")

    group.start("waits", waits)
    group.start("fails", boom)
    start = time.monotonic()
    assert woken.wait(10) and group.stopping.is_set()
    with pytest.raises(ValueError, match=r"^boom$") as error:
        group.close()
    assert time.monotonic() - start < 9
    assert traceback.extract_tb(error.tb)[-1].name == "boom"


def test_a_failure_after_stop_is_a_consequence_of_it() -> None:
    group = ThreadGroup(10)

    def fails_when_stopped() -> None:
        group.stopping.wait()
        boom()

    group.start("late", fails_when_stopped)
    group.close()


def test_shutdown_is_not_a_failure_and_stops_nobody() -> None:
    group = ThreadGroup(10)
    done = threading.Event()

    def shut_down() -> None:
        try:
            raise ShutDown
        finally:
            done.set()

    group.start("ends", shut_down)
    assert done.wait(10)
    assert not group.stopping.wait(0.05)
    group.close()
    assert group.stopping.is_set()


def test_close_names_the_threads_that_do_not_end() -> None:
    group = ThreadGroup(join_seconds=0.05)
    release = threading.Event()
    group.start("ends", lambda: None)
    group.start("stuck", release.wait)
    with pytest.warns(RuntimeWarning, match=r"\['stuck'\] did not end within 0.05 s"):
        group.close()
    release.set()


def test_a_group_without_threads_closes() -> None:
    ThreadGroup(10).close()


class Slow:
    """Stands in for an array that is ready at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def is_ready(self) -> bool:
        self.looks += 1
        return self.looks > 2


def test_waiting_polls_until_every_array_is_ready() -> None:
    polls = []
    arrays = {"fast": jnp.zeros(()).block_until_ready(), "slow": [Slow(), Slow()]}
    wait_until_ready(arrays, lambda: polls.append(1), interval=0)
    assert len(polls) == 4
    assert all(leaf.is_ready() for leaf in arrays["slow"])


def test_what_poll_raises_ends_the_wait() -> None:
    with pytest.raises(ValueError, match="boom"):
        wait_until_ready([Slow()], boom)
