"""Eight stand-in CPU devices for every test, and no thread left behind by any."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

# Read once, when jax is first used: before any test module imports it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)
# Tests of whole runs compile the same small programs again and again.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="sebulba-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import pytest

GRACE_SECONDS = 2.0
"""What a thread that was told to end may take to do so."""


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
        time.sleep(0.01)
    assert not left, f"the test left threads running: {sorted(thread.name for thread in left)}"
