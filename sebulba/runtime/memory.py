"""Memory that is free, but that the process still holds."""

from __future__ import annotations

import contextlib
import ctypes


def release() -> None:
    """Give the system back what is free in the C library's heaps, one for each thread or so.

    The threads of actors, of JAX and of checkpoints come and go, and use their heaps in turn: what
    is free in each of them adds up, and would be kept. It takes milliseconds. Does nothing where
    the C library is not glibc.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
