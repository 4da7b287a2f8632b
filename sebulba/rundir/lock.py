"""The lock of a run directory, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

from sebulba.validation import ConfigError

LOCK_NAME = ".lock"
"""The file that is locked. It is there while a run writes, and after one that was killed."""
_FLOCK = "hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""
_Key = tuple[int, int, int]
_held: dict[_Key, object] = {}
"""What this process has locked; the system's locks only keep out other processes."""


class Lock:
    """A run directory that is locked by this process."""

    def __init__(self, path: Path, key: _Key, descriptor: int) -> None:
        self._path = path
        self._key = key
        self._descriptor = descriptor

    def release(self) -> None:
        """Let other runs in."""
        if self._key[0] != os.getpid():
            return  # A forked copy of the process that holds it.
        # Removed while it is still locked: another run may open it, but then finds that it is gone.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        del _held[self._key]


def lock(directory: Path) -> Lock:
    """Keep other runs out of ``directory`` until ``release``, or until this process ends.

    On a network file system, this may only keep out other processes of the same machine.

    Raises:
      ConfigError: another run writes to it.
      OSError: it is not there, or cannot be written to.
    """
    where = os.stat(directory)
    key, mark = (os.getpid(), where.st_dev, where.st_ino), object()
    if _held.setdefault(key, mark) is not mark:
        raise _taken(directory)
    try:
        return Lock(directory / LOCK_NAME, key, _open_locked(directory))
    except BaseException:
        del _held[key]
        raise


def is_locked(directory: Path) -> bool:
    """Whether a run of this machine, in this process or another, writes to ``directory``."""
    with contextlib.suppress(OSError):
        where = os.stat(directory)
        # Not looked at through the file then: closing that would end this process's own lock.
        if (os.getpid(), where.st_dev, where.st_ino) in _held:
            return True
        with (directory / LOCK_NAME).open("rb") as file:
            # Asks who holds it, without taking it for a moment from a run that is starting.
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
            return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK
    return False


def _open_locked(directory: Path) -> int:
    path = directory / LOCK_NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # Not flock, whose locks a forked worker of an environment would share, and keep after
            # its parent was killed.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            os.close(descriptor)
            raise _taken(directory) from error
        except OSError:
            return descriptor  # A file system without locks must not prevent training.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # Another run removed it when it ended, just before it was locked.


def _taken(directory: Path) -> ConfigError:
    return ConfigError(
        f"another run is writing to {directory}: wait until it has ended, or set out to "
        "another directory, on the command line with --out."
    )
