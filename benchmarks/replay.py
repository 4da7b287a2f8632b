"""What R2D2's replay costs: inserting, sampling, memory, and three ways to draw by priority.

    python benchmarks/replay.py --out benchmarks/results/replay.json
    python benchmarks/replay.py --soak 600 --out benchmarks/results/replay_soak.json

Repeats are interleaved, since machines drift; times are median (min to max) in milliseconds.
flashbax, which is no dependency, is compared where it is installed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from draws import BATCH, SIZES, compare_draws, seconds, show, spread

from sebulba.learners.replay.shard import ReplayShard
from sebulba.learners.replay.storage import (
    Block,
    DeviceStorage,
    Geometry,
    HostStorage,
    block_of,
    nbytes,
)
from sebulba.types import ActorOutput, Timestep, Trajectory

UNROLL, SPAN, ENVS = 40, 2, 20
"""Steps of an unroll, unrolls of a sequence (80 steps), environments."""
ATARI = ((84, 84), np.uint8, 512)
CARTPOLE = ((4,), np.float32, 64)
CASES = (
    ("atari", ATARI, "host", 1_000),
    ("atari", ATARI, "host", 10_000),
    # 100,000 sequences of Atari frames would take 29 GiB: the largest has small observations.
    *(("cartpole", CARTPOLE, "host", size) for size in SIZES),
    *(("cartpole", CARTPOLE, "device", size) for size in SIZES),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What to measure."""

    repeats: int = 7
    """Interleaved rounds."""
    soak: float = 0.0
    """Instead, insert and sample for so many seconds and print the resident memory."""
    out: Path = Path("benchmarks/results/replay.json")


def main(options: Options) -> None:
    """Measure, print a table, and write JSON."""
    result: dict[str, Any] = {
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "load_of_the_machine": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if options.soak:
        result["soak"] = soak(options.soak)
    else:
        result["draw_and_update"] = compare_draws(options.repeats)
        result["replay"] = measure_replays(options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def unroll_of(kind: Any) -> Trajectory:
    """On the device, as it comes from an actor."""
    shape, dtype, units = kind
    rng = np.random.default_rng(0)
    lead = (UNROLL + 1, ENVS)
    frames = rng.integers(0, 255, (*lead, *shape)).astype(dtype)
    numbers, flags = np.zeros(lead, np.float32), np.zeros(lead, bool)
    action = np.zeros(lead, np.int32)
    timestep = Timestep({"observation": frames, "last_action": action}, numbers, numbers, flags)
    state = {"lstm": (np.zeros((ENVS, units), np.float32),) * 2}
    if len(shape) == 2:  # Three more frames of the stack of four.
        state["frames"] = np.zeros((ENVS, 3, *shape), dtype)  # type: ignore[assignment]
    trajectory: Trajectory = jax.device_put(
        Trajectory(timestep, ActorOutput(action[:-1], ()), state), jax.devices()[0]
    )
    return trajectory


def new_shard(trajectory: Trajectory, storage: str, size: int) -> tuple[ReplayShard, int]:
    """A replay for ``size`` sequences, and its bytes."""
    shapes: Block = jax.eval_shape(block_of, trajectory)
    geometry = Geometry(1, -(-size // ENVS) + SPAN, ENVS, SPAN)
    kind = HostStorage if storage == "host" else DeviceStorage
    kept = kind(shapes, geometry, jax.devices()[0])
    return ReplayShard(kept, geometry, 0.9), nbytes(shapes, geometry)


class Work:
    """Inserting unrolls and sampling batches."""

    def __init__(self, shard: ReplayShard, trajectory: Trajectory) -> None:
        self._shard, self._trajectory = shard, trajectory
        self._rng = np.random.default_rng(0)
        self._errors: Any = self._rng.random((UNROLL, ENVS)).astype(np.float32)
        while shard.size < (shard.geometry.slots - SPAN) * ENVS:
            self.insert()

    def insert(self) -> None:
        self._shard.insert(0, self._trajectory, self._errors, lambda errors: errors.max(axis=0))
        jax.block_until_ready(getattr(self._shard.storage, "_data"))  # noqa: B009

    def sample(self) -> None:
        jax.block_until_ready(self._shard.sample(BATCH, self._rng).sequences)

    def turn(self) -> None:
        """One insert, one sample, one update of priorities."""
        self.insert()
        sample = self._shard.sample(BATCH, self._rng)
        jax.block_until_ready(sample.sequences)
        self._shard.update(sample, self._rng.random(BATCH))


def measure_replays(repeats: int) -> list[dict[str, Any]]:
    """Insert an unroll of 20 environments; sample 64 sequences of 80 steps."""
    rows: list[dict[str, Any]] = []
    for name, kind, storage, size in CASES:
        trajectory = unroll_of(kind)
        shard, total = new_shard(trajectory, storage, size)
        work = Work(shard, trajectory)
        times = [(seconds(work.insert, 10), seconds(work.sample, 10)) for _ in range(repeats)]
        inserts, samples = zip(*times, strict=True)
        row = {
            "observation": name,
            "storage": storage,
            "sequences": size,
            "bytes": total,
            "bytes_per_step": total / (shard.geometry.slots * ENVS * UNROLL),
            "insert_steps_per_second": ENVS * UNROLL / float(np.median(inserts)),
            "sample_sequences_per_second": BATCH / float(np.median(samples)),
            "insert_milliseconds": spread(inserts),
            "sample_milliseconds": spread(samples),
        }
        rows.append(row)
        print(
            f"{name:<9}{storage:<7}{size:>7} sequences {total / 2**30:6.2f} GiB "
            f"{row['bytes_per_step']:6.0f} bytes/step; insert {row['insert_steps_per_second']:9.0f}"
            f" steps/s; sample {row['sample_sequences_per_second']:7.0f} sequences/s, "
            f"a batch in {show(samples)}",
            flush=True,
        )
    return rows


def soak(duration: float, every: float = 5.0) -> list[dict[str, float]]:
    """Insert, sample and update for ``duration`` seconds, from a full replay on."""
    trajectory = unroll_of(ATARI)
    shard, total = new_shard(trajectory, "host", 2_000)
    work = Work(shard, trajectory)
    print(f"a full replay of 2,000 Atari sequences: {total / 2**20:.0f} MiB")
    rows: list[dict[str, float]] = []
    start, turns = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < duration:
        if elapsed >= every * len(rows):
            rows.append({"seconds": round(elapsed, 1), "turns": turns, "resident_mib": resident()})
            print(json.dumps(rows[-1]), flush=True)
        work.turn()
        turns += 1
    rows.append({"seconds": round(elapsed, 1), "turns": turns, "resident_mib": resident()})
    later = [row["resident_mib"] for row in rows[len(rows) // 10 :]]
    print(f"resident memory after the first tenth: {min(later):.1f} to {max(later):.1f} MiB")
    return rows


def resident() -> float:
    """Resident memory of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no resident memory in /proc/self/status")


if __name__ == "__main__":
    main(tyro.cli(Options))
