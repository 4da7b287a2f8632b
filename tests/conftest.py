"""Eight stand-in CPU devices for every test, and no thread left behind by any."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

# Read once, when jax is first used: before any test module imports it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)

import pytest

GRACE_SECONDS = 2.0
"""What a thread that was told to end may take to do so."""


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"the test left threads running: {sorted(thread.name for thread in left)}"
