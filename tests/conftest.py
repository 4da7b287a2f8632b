"""Eight stand-in CPU devices for every test, and no thread left behind by any."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# Read once, when jax is first used: before any test module imports it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# In jax 0.10, XLA's older way to compile fused operations takes a third less; since 0.11.1 it
# refuses the option.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_use_fusion_emitters=false" if version("jax").startswith("0.10.") else "",
    )
)
# What is compiled runs for moments, here and in the processes that tests start: to optimize it less
# takes less time in all.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# The same small programs are compiled again and again, within one run of the tests and between.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest

# nohup has the one ignored, and a shell the other in what it starts in the background: trainings
# then leave them so, and so do the processes that tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

GRACE_SECONDS = 10.0
"""What a thread that was told to end may take to do so."""


def pytest_configure(config: pytest.Config) -> None:
    """What another process is still writing to the cache cannot be read, and is compiled here."""
    ignored = "ignore:Error reading persistent compilation cache entry"
    config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture
def orbax_may_fail(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """For tests in which Orbax fails: what it then leaves behind, nobody awaits or retrieves.

    It is collected here, or another test would be blamed for it.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
        # What was logged about a failure holds its exception, and with it all that is to be
        # collected; what is collected would log more.
        caplog.get_records("call").clear()
        caplog.clear()
        logging.disable()
        gc.collect()
    finally:
        logging.disable(logging.NOTSET)
        sys.unraisablehook = hook


@pytest.fixture(autouse=True, scope="module")
def garbage_is_looked_for_in_what_is_new() -> None:
    """jax alone has so many objects that to search them all takes up to a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def compiled_as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For minutes of training: with an LSTM, they take half as long then."""
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def _started() -> set[threading.Thread]:
    # Dummies stand for the runtime's own threads, once these have called back into Python.
    dummy = threading._DummyThread
    return {thread for thread in threading.enumerate() if not isinstance(thread, dummy)}


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    before = _started()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := _started() - before) and time.monotonic() < deadline:
        gc.collect()  # gRPC's thread ends with the last of its objects, some of them in circles.
        time.sleep(0.01)
    assert not left, f"the test left threads running: {sorted(thread.name for thread in left)}"
