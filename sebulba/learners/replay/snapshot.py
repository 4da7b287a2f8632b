"""Writing a replay to disk while training goes on."""

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
"""Shard, lane and slot of an unroll."""


class Snapshot:
    """The replay as it was when the snapshot was created, written by a separate thread.

    The learner must call ``keep`` before it overwrites an unroll. If the unroll is not on disk yet,
    ``keep`` copies it, so the learner never waits for more than one copy. The directory gets its
    name once it is complete, so a directory of that name can always be read. Older snapshots next
    to it are then removed.
    """

    def __init__(self, path: Path, shards: Sequence[ReplayShard], counts: np.ndarray) -> None:
        """Start writing.

        Args:
          path: the directory to write; its name is a number of turns.
          shards: all shards of this host.
          counts: numbers that ``load`` returns.
        """
        self._path = path
        self._shards = list(shards)
        # Everything small is copied now. The unrolls are read from the storage as they are written.
        self._states = [shard.state() for shard in shards]
        self._counts = counts
        self._places = [(i, *place) for i, shard in enumerate(shards) for place in shard.used()]
        # Each place is either waiting (still to be read from the storage), kept (copied because it
        # was about to be overwritten) or taken by the writer. The lock guards these changes.
        self._waiting = set(self._places)
        self._kept: dict[Place, list[np.ndarray]] = {}
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-snapshot", daemon=True)
        self._thread.start()

    def keep(self, shard: int, lane: int, slot: int) -> None:
        """Copy an unroll that is about to be overwritten, if it is not written yet.

        Raises:
          Exception: the one that stopped the writing, such as an OSError of a full disk.
        """
        if self._failure is not None:
            raise self._failure
        place = (shard, lane, slot)
        with self._lock:
            if place in self._waiting:
                self._waiting.discard(place)
                self._kept[place] = self._copy(place)

    def finish(self) -> None:
        """Wait until everything is written, and raise the error that stopped it, if any."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            temporary = self._path.with_name(self._path.name + ".tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            self._write(temporary)
            # A resumed run can reach the same turn again, and a directory with files in it cannot
            # be replaced.
            shutil.rmtree(self._path, ignore_errors=True)
            os.replace(temporary, self._path)
            for older in self._path.parent.iterdir():
                if older != self._path:
                    shutil.rmtree(older, ignore_errors=True)
        except BaseException as error:
            # Raised in the learner's thread, by ``keep`` or ``finish``: here it would end nothing.
            error.add_note(f"in thread replay-snapshot, writing {self._path}")
            self._failure = error

    def _write(self, directory: Path) -> None:
        np.save(directory / "counts.npy", self._counts)
        for number, state in enumerate(self._states):
            geometry = np.array(self._shards[number].geometry)
            np.savez(directory / f"state_{number}.npz", geometry=geometry, **state)  # type: ignore[arg-type]
        # One file for each shard and leaf, with the unrolls in the order of ``ReplayShard.used``,
        # in which ``load`` reads them.
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
        """Write the header of a .npy file ``[unrolls, ...]``; the data is then appended."""
        # numpy.lib.format.open_memmap would be simpler, but writing to a memory map on a full disk
        # ends the process by SIGBUS instead of raising an exception.
        count = sum(place[0] == shard for place in self._places)
        header = np.lib.format.header_data_from_array_1_0(block)
        header |= {"shape": (count, *block.shape), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header)

    def _take(self, place: Place) -> list[np.ndarray]:
        # The storage is read under the lock too: else ``keep`` could find the place taken, and the
        # learner overwrite it in the middle of the copy.
        with self._lock:
            if place in self._kept:
                return self._kept.pop(place)
            self._waiting.discard(place)
            return self._copy(place)

    def _copy(self, place: Place) -> list[np.ndarray]:
        shard, lane, slot = place
        return [np.array(block) for block in self._shards[shard].storage.blocks(lane, slot)]


def newest(directory: Path, shards: Sequence[ReplayShard]) -> Path | None:
    """The newest complete snapshot in ``directory``, or None if it does not fit ``shards``."""
    # What is not complete has a name that ends in .tmp.
    turns = [int(path.name) for path in directory.glob("*") if path.name.isdigit()]
    if not turns:
        return None
    path = directory / str(max(turns))
    # As many shards, no less and no more: the file of one more must not exist.
    files = _state_files(path, len(shards) + 1)
    if not all(file.exists() for file in files[:-1]) or files[-1].exists():
        return None
    fits = all(_fits(path, number, shard) for number, shard in enumerate(shards))
    return path if fits else None


def load(path: Path, shards: Sequence[ReplayShard]) -> np.ndarray:
    """Fill empty shards from a snapshot that fits them; returns its counts."""
    for number, (shard, file) in enumerate(
        zip(shards, _state_files(path, len(shards)), strict=True)
    ):
        shard.load_state(dict(np.load(file)))
        # Now ``shard.used`` lists the places of the saved shard, in the order of its files.
        leaves = _read_unrolls(path, number, shard)
        for index, (lane, slot) in enumerate(shard.used()):
            shard.storage.load(lane, slot, [leaf[index] for leaf in leaves])
    return np.load(path / "counts.npy")


def _state_files(path: Path, count: int) -> list[Path]:
    return [path / f"state_{number}.npz" for number in range(count)]


def _read_unrolls(path: Path, number: int, shard: ReplayShard) -> list[np.ndarray]:
    """An array ``[unrolls, ...]`` for each leaf, mapped from its file; none if it was empty."""
    files = [_file(path, number, leaf) for leaf in range(len(shard.storage.blocks(0, 0)))]
    return [np.load(file, mmap_mode="r") for file in files if file.exists()]


def _fits(path: Path, number: int, shard: ReplayShard) -> bool:
    geometry = np.load(_state_files(path, number + 1)[-1])["geometry"]
    blocks = zip(_read_unrolls(path, number, shard), shard.storage.blocks(0, 0), strict=False)
    same_blocks = all(leaf.shape[1:] == block.shape for leaf, block in blocks)
    return same_blocks and np.array_equal(geometry, shard.geometry)


def _file(directory: Path, shard: int, leaf: int) -> Path:
    return directory / f"unrolls_{shard}_{leaf}.npy"
