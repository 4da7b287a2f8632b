"""Compression of what env-hosts send, for networks that are slower than it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from sebulba.validation import ConfigError

Name = Literal["none", "lz4"]


class Compression(NamedTuple):
    """Both directions of one method; each may be called from any thread.

    Attributes:
      compress: bytes to fewer bytes, or to more, where they have no pattern.
      decompress: ``decompress(packed, nbytes)`` gives at most ``nbytes``, and raises ``ValueError``
        where there are more, or where ``packed`` is nothing that was compressed.
    """

    compress: Callable[[bytes], bytes]
    decompress: Callable[[memoryview, int], bytes]


def named(name: object) -> Compression | None:
    """The method of this name; None for ``"none"``.

    Raises:
      ConfigError: there is no such method, or the package that has it is not installed.
    """
    if name == "none":
        return None
    if name != "lz4":
        # A stranger may have sent it: so by its repr, and cut off.
        raise ConfigError(f"compress is {name!r:.80}: it must be none or lz4.")
    try:
        # Not at the top, since few need it.
        import lz4.block
    except ImportError as error:
        raise ConfigError(
            f"compress is lz4, whose package is missing ({error}): pip install lz4, which is in "
            "the extra remote, or set compress to none, on the command line with --compress none."
        ) from error

    def compress(body: bytes) -> bytes:
        return lz4.block.compress(body, store_size=False)

    def decompress(packed: memoryview, nbytes: int) -> bytes:
        try:
            return lz4.block.decompress(packed, uncompressed_size=nbytes)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(str(error)) from error

    return Compression(compress, decompress)


def problem(name: object) -> str | None:
    """Why a trainer cannot read what is compressed in this way; None if it can."""
    try:
        named(name)
    except ConfigError as error:
        return f"on the trainer, {error}"
    return None
