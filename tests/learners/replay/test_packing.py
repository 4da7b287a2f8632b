"""Arrays of all types as rows of words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.learners.replay.packing import LANES, Packing

TYPES = (
    *(np.uint8, np.int8, np.bool_, np.uint16, np.int16, np.float16, jnp.bfloat16),
    *(np.uint32, np.int32, np.float32),
)


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Any bits at all: numbers that are not finite, too."""
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    size = np.dtype(dtype).itemsize
    return rng.integers(0, 256, (*shape, size)).astype(np.uint8).view(dtype)[..., 0]


def bits(tree: Any) -> list[tuple[Any, Any, bytes]]:
    leaves = (np.asarray(leaf) for leaf in jax.tree.leaves(tree))
    return [(leaf.shape, leaf.dtype, leaf.tobytes()) for leaf in leaves]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (130, 2)])
def test_all_types_come_back_bit_for_bit(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    trees = {np.dtype(kind).name: random_bits(rng, (4, *shape), kind) for kind in TYPES}
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), trees)
    packing = Packing(one)
    words = jax.jit(packing.pack)(trees)
    assert words.dtype == jnp.uint32 and words.shape == (4, packing.rows, LANES)
    total = sum(leaf.nbytes for leaf in trees.values()) // 4
    # Less than a word is lost at the end of each leaf, and less than a row at the end of all.
    assert total <= 512 * packing.rows < total + 4 * len(TYPES) + 512
    assert bits(jax.jit(packing.unpack)(words)) == bits(trees)


def test_types_of_eight_bytes() -> None:
    numbers = np.random.default_rng(1).normal(size=(3, 5))
    with jax.enable_x64(True):
        packing = Packing(jax.ShapeDtypeStruct((5,), np.float64))
        assert bits(packing.unpack(packing.pack(jnp.asarray(numbers)))) == bits(numbers)
