"""Freed memory stays with the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

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
for _ in range(20):
    f(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    f(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# Page faults in 64 MiB at the end of a block of 3 GiB, more than malloc by itself would ever keep.
LARGE = """
import ctypes, resource
from sebulba.allocator import keep_freed_memory

assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(3 << 30)
    ctypes.memset(block + (3 << 30) - (64 << 20), 1, 64 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# Parts of the heap that the kernel was asked to give huge pages to.
HUGE = """
from sebulba.allocator import keep_freed_memory

assert keep_freed_memory()
parts = open("/proc/self/smaps").read().split("VmFlags:")
flags = [after.split("\\n")[0] for before, after in zip(parts, parts[1:]) if "[heap]" in before]
print(sum(" hg" in words for words in flags))
"""
# MiB that a replay of 256 MiB takes before anything is in it, and when it is gone.
REPLAY = """
import jax, numpy as np
from sebulba.allocator import keep_freed_memory
from sebulba.learners.storage import Block, Geometry, HostStorage

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024

assert keep_freed_memory()
block = Block(jax.ShapeDtypeStruct((1, 1 << 20), np.uint8), (), ())
before = resident()
storage = HostStorage(block, Geometry(1, 256, 1, 1), jax.devices()[0])
empty = resident() - before
for slot in range(256):
    storage.load(0, slot, [np.ones((1, 1 << 20), np.uint8)])
assert resident() - before >= 256
del storage
print(max(empty, resident() - before))
"""

only_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told"
)


def number(script: str) -> int:
    """What a process of its own prints."""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@only_glibc
def test_freed_memory_is_used_again() -> None:
    pages = 5 * (1 << 26) // 4096
    assert number(FAULTS) < pages / 100


@only_glibc
@pytest.mark.skipif(
    os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < 8 << 30, reason="a small machine"
)
def test_large_blocks_are_kept_too() -> None:
    assert number(LARGE) < (1 << 26) // 4096 / 100


@only_glibc
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_the_heap_is_of_huge_pages() -> None:
    assert number(HUGE) == 1


@only_glibc
def test_a_replay_takes_memory_as_it_fills_and_gives_it_back() -> None:
    assert number(REPLAY) < 16


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert allocator.keep_freed_memory.__wrapped__() is False
