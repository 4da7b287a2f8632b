"""Freed memory stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from sebulba import allocator

# Page faults of five calls, each of which needs 64 MiB that the one before has freed.
FAULTS = """
import resource
import jax, jax.numpy as jnp
from sebulba.allocator import keep_freed_memory

assert keep_freed_memory()
x = jnp.ones(1 << 24)
f = jax.jit(lambda x: x + 1)
f(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    f(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told")
def test_freed_memory_is_used_again() -> None:
    result = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    pages = 5 * (1 << 26) // 4096
    assert int(result.stdout) < pages / 100


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert allocator.keep_freed_memory.__wrapped__() is False
