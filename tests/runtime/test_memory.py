"""The C library's heaps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from paths import ROOT

# Prints how many heaps 64 threads make that take and give memory at the same time.
PROGRAM = """
import ctypes, sys, threading
from sebulba.runtime import memory

def work():
    for _ in range(2000):
        libc.free(ctypes.c_void_p(libc.malloc(1000)))
    started.wait()

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "limited":
    memory.limit_heaps()
started = threading.Barrier(64)
threads = [threading.Thread(target=work) for _ in range(64)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
memory.release()
libc.fopen.restype = ctypes.c_void_p
stdout = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, stdout)
libc.fflush(stdout)
"""


def heaps(how: str, **environment: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    own = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    told = subprocess.run(
        command, cwd=ROOT, env={**own, **environment}, check=True, capture_output=True, text=True
    ).stdout
    return told.count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these heaps")
def test_threads_share_heaps() -> None:
    limit = max(4, 2 * (os.cpu_count() or 1))
    assert 1 < heaps("limited") <= limit < heaps("as they come")
    assert heaps("limited", MALLOC_ARENA_MAX="1") == 1
