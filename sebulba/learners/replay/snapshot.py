"""Writing a replay to disk while training goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sebulba.learners.replay.shard import ReplayShard

Place = tuple[int, int, int]
"""Shard, lane and slot of an unroll."""
INDEX = "index.json"
"""The file with the counts, the checksums of the unrolls, and one of its own in the last line."""
_REPLACED = ".old"


class Snapshot:
    """The replay as it was when the snapshot was created, written by a separate thread.

    The learner must call ``keep`` before it overwrites an unroll. If the unroll is not on disk yet,
    ``keep`` copies it, so the learner never waits for more than one copy. The directory gets its
    name once it is complete, so a directory of that name can always be read.
    """

    def __init__(self, path: Path, shards: Sequence[ReplayShard], counts: np.ndarray) -> None:
        """Start writing.

        Args:
          path: the directory to write; its name is a number of turns.
          shards: all shards of this host.
          counts: numbers to be read again, as ``Saved.counts``.
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
            self._give_name(temporary)
        except BaseException as error:
            # Raised in the learner's thread, by ``keep`` or ``finish``: here it would end nothing.
            error.add_note(f"in thread replay-snapshot, writing {self._path}")
            self._failure = error

    def _give_name(self, temporary: Path) -> None:
        # A resumed run can reach the same turn again, and a directory with files in it cannot be
        # replaced. Until the new one has the name, the one before has a name that is known too.
        replaced = self._path.with_name(self._path.name + _REPLACED)
        if self._path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(self._path, replaced)
        os.rename(temporary, self._path)
        shutil.rmtree(replaced, ignore_errors=True)

    def _write(self, directory: Path) -> None:
        checksums: dict[str, int] = {}
        for number, state in enumerate(self._states):
            path = state_file(directory, number)
            geometry = np.array(self._shards[number].geometry)
            np.savez(path, geometry=geometry, **state)  # type: ignore[arg-type]
            checksums[path.name] = zlib.crc32(path.read_bytes())
        # One file for each shard and leaf, with the unrolls in the order of ``ReplayShard.used``,
        # in which they are read.
        with contextlib.ExitStack() as stack:
            files: dict[Path, BinaryIO] = {}
            for place in self._places:
                for leaf, block in enumerate(self._take(place)):
                    path = unrolls_file(directory, place[0], leaf)
                    if path not in files:
                        files[path] = stack.enter_context(path.open("wb"))
                        self._write_header(files[path], place[0], block)
                    data = block.tobytes()
                    files[path].write(data)
                    checksums[path.name] = zlib.crc32(data, checksums.get(path.name, 0))
        self._write_index(directory, checksums)

    def _write_index(self, directory: Path, checksums: dict[str, int]) -> None:
        counts = self._counts.tolist()
        index = {"counts": counts, "shards": len(self._shards), "checksums": checksums}
        text = json.dumps(index)
        (directory / INDEX).write_text(f"{text}\n{zlib.crc32(text.encode())}")

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


def complete(directory: Path) -> dict[int, Path]:
    """The complete snapshots in ``directory``, under the turns behind them."""
    # What is not complete has a name that ends in .tmp.
    paths = sorted(directory.glob("*"), key=lambda path: len(path.name), reverse=True)
    names = {path: path.name.removesuffix(_REPLACED) for path in paths}
    # The shorter names come last, and take the places of those that are to be replaced.
    return {int(name): path for path, name in names.items() if name.isdigit()}


def state_file(path: Path, shard: int) -> Path:
    """Everything of a shard but its unrolls."""
    return path / f"state_{shard}.npz"


def unrolls_file(path: Path, shard: int, leaf: int) -> Path:
    """One leaf of all unrolls of a shard."""
    return path / f"unrolls_{shard}_{leaf}.npy"
