"""Whether a replay fits the memory there is."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Literal

import jax

from sebulba.validation import ConfigError


def check_memory(
    needed: int, storage: Literal["host", "device"], devices: tuple[jax.Device, ...]
) -> str:
    """One line on the memory that a replay takes; ``needed`` is in bytes, on this host.

    Raises:
      ConfigError: it is more than is free.
    """
    # A learner of an earlier training may still hold its replay, in a cycle of references.
    gc.collect()
    free = _free(storage, devices)
    where = "host memory" if storage == "host" else f"memory of {len(devices)} learner device(s)"
    line = f"replay takes {_gib(needed)} of {where}"
    if free is not None and needed > free:
        raise ConfigError(
            f"the {line}, but only {_gib(free)} are free: make --replay.capacity smaller, or "
            "change --replay.storage."
        )
    return line if free is None else f"{line} ({_gib(free)} free)"


def _free(storage: str, devices: tuple[jax.Device, ...]) -> int | None:
    """Free bytes; None where the platform does not say."""
    if storage == "host" or all(device.platform == "cpu" for device in devices):
        return _available_host_memory()
    stats = [device.memory_stats() for device in devices]
    if any(not stat or "bytes_limit" not in stat for stat in stats):
        return None
    return sum(int(stat["bytes_limit"] - stat["bytes_in_use"]) for stat in stats if stat)


def _available_host_memory() -> int | None:
    """Free bytes of this machine, or of its container where that has less."""
    found = [_free_of_machine(Path("/proc/meminfo")), _free_of_container(Path("/sys/fs/cgroup"))]
    return min((free for free in found if free is not None), default=None)


def _free_of_machine(meminfo: Path) -> int | None:
    if not meminfo.exists():
        return None
    return _numbers(meminfo)["MemAvailable:"] * 1024


def _free_of_container(cgroup: Path) -> int | None:
    """Bytes below the limit (cgroup v2); None where there is none."""
    limit = cgroup / "memory.max"
    if not limit.exists() or limit.read_text().strip() == "max":
        return None
    used = int((cgroup / "memory.current").read_text())
    reclaimable = _numbers(cgroup / "memory.stat")["inactive_file"]
    return int(limit.read_text()) - used + reclaimable


def _numbers(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    lines = file.read_text().splitlines()
    return {name: int(number) for name, number, *_ in map(str.split, lines)}


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
