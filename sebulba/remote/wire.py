"""What a trainer and an env-host send to each other: a header and JSON, or raw bytes of arrays.

Both sides know every shape and dtype before the first array is sent, so a message says none: it is
right if it has the length, the kind and the number that are due, and is refused otherwise. Nothing
is ever unpickled. Where compression was agreed, the arrays of a timestep that is shorter than due
are compressed.
"""

from __future__ import annotations

import enum
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sebulba.envs.base import map_arrays, named_arrays
from sebulba.envs.previous_action import action_array
from sebulba.remote.compression import Compression
from sebulba.types import ArraySpec, EnvSpec, Timestep

WIRE_VERSION = 1
MAX_WORDS = 1 << 16
"""Bytes that a message of JSON may have."""
_MAGIC = b"SBLB"
# Magic, version, kind, number of the timestep in its life, seconds that the environments took.
_HEADER = struct.Struct("<4sHHQd")
# Every array starts at a multiple of this, as NumPy likes it. The header has that length too.
_ALIGNMENT = 8

Array = np.ndarray[Any, Any]


class WireError(ValueError):
    """A message is not what was due."""


class Kind(enum.IntEnum):
    """What a message is."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    TIMESTEP = 4
    ACTION = 5
    HEARTBEAT = 6
    END = 7


def pack(kind: Kind, words: Mapping[str, Any] | None = None) -> bytes:
    """A message of JSON; of nothing but a header, if there are no ``words``."""
    body = b"" if words is None else json.dumps(words).encode()
    return _HEADER.pack(_MAGIC, WIRE_VERSION, kind, 0, 0.0) + body


def unpack(message: bytes) -> dict[str, Any]:
    """The words of a message of JSON.

    Raises:
      WireError: they are no JSON object, or too long.
    """
    if len(message) > MAX_WORDS:
        raise WireError(f"{len(message):,} bytes of words, where {MAX_WORDS:,} are the limit")
    try:
        words = json.loads(message[_HEADER.size :])
    except (ValueError, RecursionError) as error:
        raise WireError("its words are no JSON") from error
    if not isinstance(words, dict):
        raise WireError("its words are no JSON object")
    return words


def kind_of(message: bytes) -> Kind:
    """The kind of any message.

    Raises:
      WireError: it is none of this wire.
    """
    return _header(message)[0]


def _header(message: bytes) -> tuple[Kind, int, float]:
    if len(message) < _HEADER.size:
        raise WireError(f"{len(message)} bytes, which are fewer than a header has")
    magic, version, kind, number, seconds = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise WireError("it does not begin as messages of sebulba do")
    if version != WIRE_VERSION:
        raise WireError(f"version {version} of the wire, and this side has {WIRE_VERSION}")
    try:
        return Kind(kind), number, seconds
    except ValueError as error:
        raise WireError(f"kind {kind}, which there is not") from error


class Layout:
    """The arrays of one kind of message, each in its place."""

    def __init__(
        self, kind: Kind, arrays: Sequence[ArraySpec], compression: Compression | None = None
    ) -> None:
        """Lay out messages of a kind.

        Args:
          kind: of the messages.
          arrays: their shapes, with the batch axis, and dtypes of bool or numbers.
          compression: of the arrays; None for none.

        Raises:
          WireError: a dtype is neither.
        """
        self._kind = kind
        self._compression = compression
        # Where each begins, behind the header.
        self._arrays: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
        end = 0
        for shape, dtype in ((array.shape, np.dtype(array.dtype)) for array in arrays):
            if dtype.kind not in "biuf":
                raise WireError(
                    f"arrays of {dtype} cannot be sent: convert them in the environment"
                )
            self._arrays.append((end, shape, dtype.newbyteorder("<")))
            end += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = _HEADER.size + end

    def encode(self, number: int, arrays: Sequence[Any], seconds: float = 0.0) -> bytes:
        """A message of these arrays; each is copied once, into it.

        Raises:
          WireError: an array has another shape.
        """
        header = _HEADER.pack(_MAGIC, WIRE_VERSION, self._kind, number, seconds)
        parts: list[Any] = []
        for (_, shape, dtype), given in zip(self._arrays, arrays, strict=True):
            array = np.ascontiguousarray(given, dtype)
            if array.shape != shape:
                raise WireError(f"an array has the shape {array.shape}, where {shape} is due")
            parts += [array.data, bytes(-array.nbytes % _ALIGNMENT)]
        if self._compression is not None:
            packed = self._compression.compress(b"".join(parts))
            if _HEADER.size + len(packed) < self.nbytes:
                parts = [packed]
        return b"".join([header, *parts])

    def decode(self, message: bytes, number: int) -> tuple[list[Array], float]:
        """The arrays, as views of bytes that cannot be written to, and the seconds.

        Raises:
          WireError: the kind, the number or the length is another, or a bool is neither 0 nor 1.
        """
        kind, told, seconds = _header(message)
        if (kind, told) != (self._kind, number):
            raise WireError(f"{kind.name} {told}, where {self._kind.name} {number} is due")
        if not 0 <= seconds < math.inf:
            raise WireError(f"{seconds} seconds")
        body, start = message, _HEADER.size
        if self._compression is not None and len(message) < self.nbytes:
            body, start = self._decompressed(message, self._compression), 0
        if len(body) - start != self.nbytes - _HEADER.size:
            raise WireError(
                f"{_HEADER.size + len(body) - start:,} bytes, where {self.nbytes:,} are due"
            )
        arrays = [_view(body, start + at, shape, dtype) for at, shape, dtype in self._arrays]
        return arrays, seconds

    def _decompressed(self, message: bytes, compression: Compression) -> bytes:
        """The arrays' bytes, which are never more than are due, whatever the message says."""
        packed = memoryview(message)[_HEADER.size :]
        try:
            return compression.decompress(packed, self.nbytes - _HEADER.size)
        except ValueError as error:
            raise WireError(f"what was not compressed as agreed: {error}") from error


def _view(message: bytes, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind != "b":
        return np.ndarray(shape, dtype, message, start)
    # What NumPy does with a bool of any other bits is not defined.
    bits: Array = np.ndarray(shape, np.uint8, message, start)
    if bits.size and bits.max() > 1:
        raise WireError("a bool that is neither 0 nor 1")
    return bits.view(np.bool_)


class Codec:
    """Timesteps and actions of one batch of environments, as messages.

    Attributes:
      spec: of the environments, with plain dicts.
      max_bytes: of the longest message there is; one that is compressed is always shorter.
      round_trip_bytes: of a timestep and an action, if neither is compressed.
    """

    def __init__(self, spec: EnvSpec, compression: Compression | None = None) -> None:
        """Lay out the messages of these environments.

        Args:
          spec: of the environments.
          compression: of timesteps; None for none.

        Raises:
          WireError: an observation has a dtype that cannot be sent.
        """
        self.spec = spec._replace(observation=map_arrays(lambda told: told, spec.observation))
        lead = (spec.num_envs,)
        number, flag = np.dtype(np.float32), np.dtype(np.bool_)
        observations = [told for _, told in named_arrays(spec.observation)]
        told = [*observations, *(ArraySpec((), dtype) for dtype in (number, number, flag))]
        batched = [ArraySpec((*lead, *each.shape), each.dtype) for each in told]
        action = action_array(spec.action)
        self._timestep = Layout(Kind.TIMESTEP, batched, compression)
        self._action = Layout(Kind.ACTION, [ArraySpec((*lead, *action.shape), action.dtype)])
        self.round_trip_bytes = self._timestep.nbytes + self._action.nbytes
        self.max_bytes = max(self._timestep.nbytes, self._action.nbytes, MAX_WORDS)

    def encode_timestep(self, number: int, timestep: Timestep, seconds: float) -> bytes:
        """Timestep ``number`` of a life, 0 for that of the reset.

        Raises:
          WireError: an array has another shape than the spec says.
        """
        observations = [array for _, array in named_arrays(timestep.observation)]
        return self._timestep.encode(number, [*observations, *timestep[1:]], seconds)

    def decode_timestep(self, message: bytes, number: int) -> tuple[Timestep, float]:
        """Timestep ``number`` of a life, and the seconds that the environments took for it.

        Raises:
          WireError: it is not what is due.
        """
        arrays, seconds = self._timestep.decode(message, number)
        observation = _nested(self.spec.observation, iter(arrays))
        return Timestep(observation, *arrays[-3:]), seconds

    def encode_action(self, number: int, action: Array) -> bytes:
        """The action at timestep ``number``.

        Raises:
          WireError: it has another shape than the spec says.
        """
        return self._action.encode(number, [action])

    def decode_action(self, message: bytes, number: int) -> Array:
        """The action at timestep ``number``.

        Raises:
          WireError: it is not what is due.
        """
        (action,), _ = self._action.decode(message, number)
        return action

    def no_action(self) -> Array:
        """An action of zeros ``[B, ...]``."""
        return _zeros(action_array(self.spec.action), self.spec.num_envs)

    def no_timestep(self) -> Timestep:
        """A timestep of zeros ``[B, ...]``."""
        num_envs = self.spec.num_envs
        observation = map_arrays(lambda told: _zeros(told, num_envs), self.spec.observation)
        number = np.zeros(num_envs, np.float32)
        return Timestep(observation, number, number, np.zeros(num_envs, np.bool_))


def _zeros(told: ArraySpec, num_envs: int) -> Array:
    return np.zeros((num_envs, *told.shape), told.dtype)


def _nested(structure: Any, arrays: Iterator[Array]) -> Any:
    """The next ``arrays`` in the structure of an observation, in the order of ``named_arrays``."""
    if not isinstance(structure, Mapping):
        return next(arrays)
    return {name: _nested(structure[name], arrays) for name in sorted(structure)}
