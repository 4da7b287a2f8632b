"""Checks that a replay fits into memory, before anything is allocated."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Literal

import jax

from sebulba.validation import ConfigError


def check_memory(
    needed: int, storage: Literal["host", "device"], devices: tuple[jax.Device, ...]
) -> str:
    """Check that a replay of this host fits.

    Args:
      needed: bytes, over all learner devices of this host.
      storage: where the replay is kept.
      devices: learner devices of this host.

    Returns:
      One line on the memory that the replay takes.

    Raises:
      ConfigError: it needs more than is free.
    """
    free = _free(storage, devices)
    if free is None or needed > free:
        # The learner of an earlier run in this process may still hold its replay, in a cycle of
        # references.
        gc.collect()
        free = _free(storage, devices)
    where = "host memory" if storage == "host" else f"memory of {len(devices)} learner device(s)"
    line = f"replay takes {_gib(needed)} of {where}"
    if free is not None and needed > free:
        raise ConfigError(
            f"the {line}, but only {_gib(free)} are free. Set replay.capacity to less, on the "
            "command line with --replay.capacity, or change replay.storage, with --replay.storage."
        )
    return line if free is None else f"{line} ({_gib(free)} free)"


def _free(storage: str, devices: tuple[jax.Device, ...]) -> int | None:
    """Free bytes; None if the platform does not say."""
    # Arrays on CPU devices are in host memory too.
    if storage == "host" or all(device.platform == "cpu" for device in devices):
        return _available_host_memory()
    stats = [device.memory_stats() for device in devices]
    if any(not stat or "bytes_limit" not in stat for stat in stats):
        return None
    return sum(int(stat["bytes_limit"] - stat["bytes_in_use"]) for stat in stats if stat)


def _available_host_memory() -> int | None:
    """Free bytes of this machine, or of the container if that has less."""
    found = [_free_of_machine(Path("/proc/meminfo")), _free_of_container(Path("/sys/fs/cgroup"))]
    return min((free for free in found if free is not None), default=None)


def _free_of_machine(meminfo: Path) -> int | None:
    if not meminfo.exists():
        return None
    return _numbers(meminfo)["MemAvailable:"] * 1024


def _free_of_container(cgroup: Path) -> int | None:
    """Bytes left below the container's limit (cgroup v2); None if there is no limit."""
    limit = cgroup / "memory.max"
    if not limit.exists() or limit.read_text().strip() == "max":
        return None
    used = int((cgroup / "memory.current").read_text())
    # Cached files count as used, but the kernel drops them before it refuses memory.
    reclaimable = _numbers(cgroup / "memory.stat")["inactive_file"]
    return int(limit.read_text()) - used + reclaimable


def _numbers(file: Path) -> dict[str, int]:
    """Parses a file with a name and a number on each line."""
    lines = file.read_text().splitlines()
    return {name: int(number) for name, number, *_ in map(str.split, lines)}


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
