"""Reading a replay from disk: all of it, or nothing if any part is missing or not as written."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sebulba.learners.replay import snapshot
from sebulba.learners.replay.shard import ReplayShard

Shape = tuple[int, ...]
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
      unrolls: of each shard, the file of each leaf, an array ``[unrolls, ...]``.
    """

    turn: int
    counts: np.ndarray
    states: list[dict[str, np.ndarray]]
    unrolls: list[list[Path]]

    def fill(self, shards: Sequence[ReplayShard]) -> None:
        """Fill empty shards."""
        for shard, state, paths in zip(shards, self.states, self.unrolls, strict=True):
            shard.load_state(state)
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(path.open("rb")) for path in paths]
                for file in files:
                    _read_header(file)
                # They fit, as ``newest`` has seen.
                likes = shard.storage.blocks(0, 0) if files else []
                # Now ``used`` lists the places of the saved shard, in the order of its files.
                for lane, slot in shard.used():
                    blocks = [_read_block(*pair) for pair in zip(files, likes, strict=True)]
                    shard.storage.load(lane, slot, blocks)


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
        for path_of_leaf, block in zip(files, blocks, strict=True):
            with path_of_leaf.open("rb") as file:
                # NumPy writes bfloat16, which is none of its own types, as bytes without a type.
                as_written = np.dtype(block.dtype.str)
                _check_same(*_read_header(file), (count, *block.shape), as_written)
                if _checksum(file) != index["checksums"][path_of_leaf.name]:
                    raise ValueError(f"{path_of_leaf} is not what was written")
        states.append(state)
        unrolls.append(files)
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
        _check_same(state[name].shape, state[name].dtype, array.shape, array.dtype)
    return state


def _check_same(shape: Shape, dtype: np.dtype, right_shape: Shape, right_dtype: np.dtype) -> None:
    if (shape, dtype) != (right_shape, right_dtype):
        raise ValueError(f"{dtype}{shape} is not {right_dtype}{right_shape}")


# Files are read, and not mapped to memory: the watchdog notices bytes that are read.


def _read_header(file: BinaryIO) -> tuple[Shape, np.dtype]:
    """The shape and the dtype of an array in a file of NumPy; its numbers can be read then."""
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype


def _read_block(file: BinaryIO, like: np.ndarray) -> np.ndarray:
    """The next array, of the shape and dtype of ``like``."""
    return np.frombuffer(file.read(like.nbytes), like.dtype).reshape(like.shape)


def _checksum(file: BinaryIO) -> int:
    """Of all that is left to read."""
    checksum = 0
    while data := file.read(_READ_BYTES):
        checksum = zlib.crc32(data, checksum)
    return checksum
