"""Writing a replay to disk while it is being used."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sebulba.learners.replay.shard import ReplayShard

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
            geometry = np.array(self._shards[number].geometry)
            np.savez(directory / f"state_{number}.npz", geometry=geometry, **state)  # type: ignore[arg-type]
        with contextlib.ExitStack() as stack:
            files: dict[Path, BinaryIO] = {}
            for place in self._places:
                for leaf, block in enumerate(self._take(place)):
                    path = _file(directory, place[0], leaf)
                    if path not in files:
                        files[path] = stack.enter_context(path.open("wb"))
                        self._write_header(files[path], place[0], block)
                    files[path].write(block.tobytes())

    def _write_header(self, file: BinaryIO, shard: int, block: np.ndarray) -> None:
        """Of a .npy file ``[unrolls, ...]``; not a memory map, which a full disk makes fatal."""
        count = sum(place[0] == shard for place in self._places)
        header = np.lib.format.header_data_from_array_1_0(block)
        header |= {"shape": (count, *block.shape), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header)

    def _take(self, place: Place) -> list[np.ndarray]:
        with self._lock:
            if place in self._kept:
                return self._kept.pop(place)
            self._waiting.discard(place)
            return self._copy(place)

    def _copy(self, place: Place) -> list[np.ndarray]:
        shard, lane, slot = place
        return [np.array(block) for block in self._shards[shard].storage.blocks(lane, slot)]


def newest(directory: Path, shards: Sequence[ReplayShard]) -> Path | None:
    """The last complete snapshot in ``directory``, if it is of as many shards of this size."""
    turns = [int(path.name) for path in directory.glob("*") if path.name.isdigit()]
    if not turns:
        return None
    path = directory / str(max(turns))
    files = _state_files(path, len(shards) + 1)
    if not all(file.exists() for file in files[:-1]) or files[-1].exists():
        return None
    fits = all(_fits(path, number, shard) for number, shard in enumerate(shards))
    return path if fits else None


def load(path: Path, shards: Sequence[ReplayShard]) -> np.ndarray:
    """Fill empty shards from a snapshot of theirs; returns its counts."""
    for number, (shard, file) in enumerate(
        zip(shards, _state_files(path, len(shards)), strict=True)
    ):
        shard.load_state(dict(np.load(file)))
        leaves = _read_unrolls(path, number, shard)
        for index, (lane, slot) in enumerate(shard.used()):
            shard.storage.load(lane, slot, [leaf[index] for leaf in leaves])
    counts: np.ndarray = np.load(path / "counts.npy")
    return counts


def _state_files(path: Path, count: int) -> list[Path]:
    return [path / f"state_{number}.npz" for number in range(count)]


def _read_unrolls(path: Path, number: int, shard: ReplayShard) -> list[np.ndarray]:
    """One array ``[unrolls, ...]`` for each leaf, read as it is used; none where none was there."""
    files = [_file(path, number, leaf) for leaf in range(len(shard.storage.blocks(0, 0)))]
    return [np.load(file, mmap_mode="r") for file in files if file.exists()]


def _fits(path: Path, number: int, shard: ReplayShard) -> bool:
    geometry = np.load(_state_files(path, number + 1)[-1])["geometry"]
    blocks = zip(_read_unrolls(path, number, shard), shard.storage.blocks(0, 0), strict=False)
    same_blocks = all(leaf.shape[1:] == block.shape for leaf, block in blocks)
    return same_blocks and np.array_equal(geometry, shard.geometry)


def _file(directory: Path, shard: int, leaf: int) -> Path:
    return directory / f"unrolls_{shard}_{leaf}.npy"
