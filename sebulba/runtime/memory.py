"""The C library's heaps, in which memory that is free again adds up."""

from __future__ import annotations

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8  # As malloc.h has it.


def limit_heaps() -> None:
    """Let threads share heaps, twice as many as there are CPUs and at least 4.

    The C library would make 8 for each CPU, and what is free in one is of no use to threads that
    have another. Does nothing where the environment says how many (MALLOC_ARENA_MAX), and where the
    C library is not glibc.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "MALLOC_ARENA_MAX" not in os.environ and "arena_max" not in tunables:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(4, 2 * (os.cpu_count() or 1)))


def release() -> None:
    """Give the system back what is free in all heaps.

    It takes milliseconds. Does nothing where the C library is not glibc.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
