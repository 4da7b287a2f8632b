"""Storage of replayed unrolls on a device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.learners.replay.storage import Block, DevicePrograms, Geometry
from sebulba.types import Timestep

GEOMETRY = Geometry(lanes=2, slots=3, num_envs=2, span=1)


def random_block(rng: np.random.Generator) -> Block:
    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(size=(2, 4, *shape)).astype(np.float32)

    timestep = Timestep(numbers(5), numbers(), numbers(), numbers() > 0)
    return Block(timestep, numbers().astype(np.int32), numbers()[:, 0])


@pytest.mark.parametrize("bits_64", [False, True])
def test_a_slot_comes_back_as_it_was_written(bits_64: bool) -> None:
    rng = np.random.default_rng(0)
    blocks = {place: random_block(rng) for place in [(0, 2), (1, 0)]}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), blocks[0, 2])
    with jax.enable_x64(bits_64):
        programs = DevicePrograms(shapes, GEOMETRY)
        data = jnp.zeros(programs.data.shape, programs.data.dtype)
        for place, block in blocks.items():
            data = jax.jit(programs.write)(data, block, np.asarray(place, np.int32))
        for place, block in blocks.items():
            found = jax.jit(programs.slot)(data, np.asarray(place, np.int32))
            jax.tree.map(np.testing.assert_array_equal, found, block)
