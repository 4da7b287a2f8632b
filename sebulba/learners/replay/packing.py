"""Arrays of all types as rows of 32-bit words, which cost a TPU no padding and no copies.

A TPU keeps an array in tiles of its last two axes: 8 x 128 words. Frames of 84 x 84 bytes are
padded to whole tiles, and to gather some of them XLA first copies all of them into another layout.
Of rows of words ``[..., 128]`` nothing is padded but the last tile, and a gather copies what it
reads.

Bytes lie in planes: word i of W has the bytes i, i + W, i + 2 W and i + 3 W of a leaf. They are
unpacked by shifts, where neighbors in one word would need a last axis of 4, padded to 128.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import ArrayTree

LANES = 128
"""Words in a row."""


class Packing:
    """How a tree of arrays becomes rows of words, and back.

    Attributes:
      rows: rows of ``LANES`` words that one tree takes.
    """

    def __init__(self, shapes: ArrayTree) -> None:
        """``shapes``: shapes and dtypes of one tree, without the axis of many."""
        self._shapes, self._structure = jax.tree.flatten(shapes)
        self._words = [_count_words(leaf) for leaf in self._shapes]
        self.rows = -(-sum(self._words) // LANES)

    def pack(self, tree: ArrayTree) -> jax.Array:
        """Words uint32 ``[N, rows, LANES]`` of N trees, whose leaves are ``[N, ...]``."""
        words = jnp.concatenate([_to_words(leaf) for leaf in jax.tree.leaves(tree)], axis=1)
        padding = self.rows * LANES - words.shape[1]
        return jnp.pad(words, ((0, 0), (0, padding))).reshape(-1, self.rows, LANES)

    def unpack(self, words: jax.Array) -> Any:
        """The N trees in ``words``, bit for bit; their leaves are ``[N, ...]``."""
        flat = words.reshape(words.shape[0], -1)
        ends = np.cumsum(self._words)
        leaves = [
            _from_words(flat[:, end - count : end], leaf)
            for leaf, count, end in zip(self._shapes, self._words, ends, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)


def _count_words(leaf: Any) -> int:
    return -(-math.prod(leaf.shape) * leaf.dtype.itemsize // 4)


def _to_words(leaf: jax.Array) -> jax.Array:
    """Words ``[N, W]`` of ``[N, ...]``."""
    size = leaf.dtype.itemsize
    if size >= 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32).reshape(leaf.shape[0], -1)
    # Booleans have no bits that could be taken as they are.
    leaf = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
    parts = jax.lax.bitcast_convert_type(leaf, _unsigned(size)).reshape(leaf.shape[0], -1)
    planes = 4 // size
    parts = jnp.pad(parts, ((0, 0), (0, -parts.shape[1] % planes)))
    parts = parts.reshape(leaf.shape[0], planes, -1).astype(jnp.uint32)
    words = parts[:, 0]
    for plane in range(1, planes):
        words |= parts[:, plane] << (8 * size * plane)
    return words


def _from_words(words: jax.Array, leaf: Any) -> jax.Array:
    """The array ``[N, ...]`` in words ``[N, W]``; ``leaf`` has its shape and dtype."""
    size, shape = leaf.dtype.itemsize, (words.shape[0], *leaf.shape)
    if size >= 4:
        # Types of 8 bytes are made of two words, in a last axis of their own.
        words = words.reshape(*shape, *[size // 4] * (size > 4))
        return jax.lax.bitcast_convert_type(words, leaf.dtype)
    planes = [(words >> (8 * size * plane)).astype(_unsigned(size)) for plane in range(4 // size)]
    flat = jnp.concatenate(planes, axis=1)[:, : math.prod(leaf.shape)].reshape(shape)
    if leaf.dtype == jnp.bool_:
        return flat.astype(jnp.bool_)
    return jax.lax.bitcast_convert_type(flat, leaf.dtype)


def _unsigned(size: int) -> Any:
    return {1: jnp.uint8, 2: jnp.uint16}[size]
