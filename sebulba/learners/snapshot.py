"""Writing a replay to disk while it is being used."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from sebulba.learners.replay import ReplayShard

Place = tuple[int, int, int]
"""Shard, lane, slot."""


class Snapshot:
    """The replay as it was when the snapshot was made, written by a thread of its own.

    The learner calls ``keep`` before it overwrites an unroll, which is then copied if it is not
    on disk yet: it never waits for more than one unroll. The directory gets its name when it is
    complete, so one that is there can be read; those beside it, which are older, are removed.
    """

    def __init__(self, path: Path, shards: Sequence[ReplayShard], counts: np.ndarray) -> None:
        """``counts`` are numbers of the caller's own."""
        self._path = path
        self._shards = list(shards)
        self._states = [shard.state() for shard in shards]
        self._counts = counts
        self._places = [(i, *place) for i, shard in enumerate(shards) for place in shard.used()]
        self._waiting = set(self._places)
        self._kept: dict[Place, list[np.ndarray]] = {}
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-snapshot", daemon=True)
        self._thread.start()

    def keep(self, shard: int, lane: int, slot: int) -> None:
        """Copy an unroll that is about to be overwritten, where that is still needed.

        Raises:
          OSError: what stopped the writing.
        """
        if self._failure is not None:
            raise self._failure
        place = (shard, lane, slot)
        with self._lock:
            if place in self._waiting:
                self._waiting.discard(place)
                self._kept[place] = self._copy(place)

    def finish(self) -> None:
        """Wait until everything is written, and raise what went wrong."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            temporary = self._path.with_name(self._path.name + ".tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            self._write(temporary)
            shutil.rmtree(self._path, ignore_errors=True)
            os.replace(temporary, self._path)
            for older in self._path.parent.iterdir():
                if older != self._path:
                    shutil.rmtree(older, ignore_errors=True)
        except BaseException as error:
            error.add_note(f"in thread replay-snapshot, writing {self._path}")
            self._failure = error

    def _write(self, directory: Path) -> None:
        np.save(directory / "counts.npy", self._counts)
        for number, state in enumerate(self._states):
            np.savez(directory / f"state_{number}.npz", **state)  # type: ignore[arg-type]
        files: dict[tuple[int, int], np.ndarray] = {}
        for place in self._places:
            for leaf, block in enumerate(self._take(place)):
                shard, lane, slot = place
                if (shard, leaf) not in files:
                    geometry = self._shards[shard].geometry
                    files[shard, leaf] = np.lib.format.open_memmap(
                        _file(directory, shard, leaf),
                        mode="w+",
                        dtype=block.dtype,
                        shape=(geometry.lanes, geometry.slots, *block.shape),
                    )
                files[shard, leaf][lane, slot] = block
        for file in files.values():
            file.flush()  # type: ignore[attr-defined]

    def _take(self, place: Place) -> list[np.ndarray]:
        with self._lock:
            if place in self._kept:
                return self._kept.pop(place)
            self._waiting.discard(place)
            return self._copy(place)

    def _copy(self, place: Place) -> list[np.ndarray]:
        shard, lane, slot = place
        return [np.array(block) for block in self._shards[shard].storage.blocks(lane, slot)]


def load(path: Path, shards: Sequence[ReplayShard]) -> np.ndarray | None:
    """Fill empty shards from a snapshot; returns its counts.

    None where there is no snapshot of as many shards of this size.
    """
    files = [path / f"state_{number}.npz" for number in range(len(shards) + 1)]
    if not all(file.exists() for file in files[:-1]) or files[-1].exists():
        return None
    states = [dict(np.load(file)) for file in files[:-1]]
    for shard, state in zip(shards, states, strict=True):
        if state["powers"].shape != shard.priorities.powers.shape:
            return None
    for number, (shard, state) in enumerate(zip(shards, states, strict=True)):
        shard.load_state(state)
        count = len(jax.tree.leaves(shard.storage.blocks(0, 0)))
        leaves = [np.load(_file(path, number, leaf), mmap_mode="r") for leaf in range(count)]
        for lane, slot in shard.used():
            shard.storage.load(lane, slot, [leaf[lane, slot] for leaf in leaves])
    counts: np.ndarray = np.load(path / "counts.npy")
    return counts


def _file(directory: Path, shard: int, leaf: int) -> Path:
    return directory / f"unrolls_{shard}_{leaf}.npy"
