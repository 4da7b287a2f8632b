"""Reading a replay from disk: all of it, or nothing if any part is missing or not as written."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sebulba.learners.replay import snapshot
from sebulba.learners.replay.shard import ReplayShard

_READ_BYTES = 1 << 20
_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What NumPy and others raise for files that are not what was written."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A snapshot that fits the shards it was read for.

    Attributes:
      turn: its name, the number of turns behind it.
      counts: those that were given to ``Snapshot``.
      states: of each shard, what ``ReplayShard.state`` returned.
      unrolls: of each shard, an array ``[unrolls, ...]`` for each leaf, mapped from its file.
    """

    turn: int
    counts: np.ndarray
    states: list[dict[str, np.ndarray]]
    unrolls: list[list[np.ndarray]]

    def fill(self, shards: Sequence[ReplayShard]) -> None:
        """Fill empty shards."""
        for shard, state, leaves in zip(shards, self.states, self.unrolls, strict=True):
            shard.load_state(state)
            # Now ``used`` lists the places of the saved shard, in the order of its files.
            for index, (lane, slot) in enumerate(shard.used()):
                shard.storage.load(lane, slot, [leaf[index] for leaf in leaves])


def newest(path: Path, shards: Sequence[ReplayShard]) -> Saved | None:
    """The snapshot ``path`` or else the newest one beside it that can be read and fits ``shards``.

    There may be one that is newer than ``path``, of a checkpoint that was never complete.
    """
    found = snapshot.complete(path.parent)
    turns = sorted(found, key=lambda turn: (turn == int(path.name), turn), reverse=True)
    for turn in turns:
        try:
            return _read(turn, found[turn], shards)
        except _DAMAGE:
            continue  # The next one may be good.
    return None


def _read(turn: int, path: Path, shards: Sequence[ReplayShard]) -> Saved:
    text, _, checksum = (path / snapshot.INDEX).read_text().rpartition("\n")
    index = json.loads(text)
    if checksum != str(zlib.crc32(text.encode())) or index["shards"] != len(shards):
        raise ValueError("another number of shards, or not what was written")
    states, unrolls = [], []
    for number, shard in enumerate(shards):
        state = _state(snapshot.state_file(path, number), shard, index["checksums"])
        count = int(np.minimum(state["unrolls"], shard.geometry.slots).sum())
        blocks = shard.storage.blocks(0, 0) if count else []
        files = [snapshot.unrolls_file(path, number, leaf) for leaf in range(len(blocks))]
        leaves = [np.load(file, mmap_mode="r") for file in files]
        for file, leaf, block in zip(files, leaves, blocks, strict=True):
            _check_same(leaf, (count, *block.shape), block.dtype)
            if _checksum(file) != index["checksums"][file.name]:
                raise ValueError(f"{file} is not what was written")
        states.append(state)
        unrolls.append(leaves)
    return Saved(turn, np.array(index["counts"]), states, unrolls)


def _state(file: Path, shard: ReplayShard, checksums: dict[str, int]) -> dict[str, np.ndarray]:
    data = file.read_bytes()
    if zlib.crc32(data) != checksums[file.name]:
        raise ValueError(f"{file} is not what was written")
    with np.load(io.BytesIO(data)) as saved:
        state = dict(saved)
    if not np.array_equal(state.pop("geometry"), shard.geometry):
        raise ValueError("another geometry")
    for name, array in shard.state().items():
        _check_same(state[name], array.shape, array.dtype)
    return state


def _check_same(array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{array.dtype}{array.shape} is not {dtype}{shape}")


def _checksum(path: Path) -> int:
    """Of the numbers in a file of NumPy, without its header."""
    checksum = 0
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        # By reads, which the watchdog notices, and not through the file's mapping.
        while data := file.read(_READ_BYTES):
            checksum = zlib.crc32(data, checksum)
    return checksum
