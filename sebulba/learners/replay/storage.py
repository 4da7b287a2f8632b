"""Storage of replayed unrolls, in host memory or on a learner device.

Both kinds keep every environment step once, in blocks. A block is one unroll of one environment,
with the recurrent state before its first step; blocks are indexed by lane, slot and environment. A
sequence is ``span`` consecutive slots of one lane and environment, and the first timestep of the
slot after them.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from sebulba.learners.replay.packing import LANES, Packing
from sebulba.types import Agent, ArrayTree, EnvSpec, Timestep, Trajectory


class Geometry(NamedTuple):
    """Sizes of a storage, whose blocks are indexed by lane, slot and environment.

    Attributes:
      lanes: actors of this host.
      slots: unrolls kept of each lane.
      num_envs: environments of a lane on this device.
      span: unrolls in one sequence.
    """

    lanes: int
    slots: int
    num_envs: int
    span: int


class Sequences(NamedTuple):
    """N replayed sequences of S steps; unlike trajectories, they are batch-major.

    Attributes:
      timestep: ``[N, S+1, ...]``.
      action: ``[N, S]``.
      initial_state: ``[N, ...]``, the actor's recurrent state before the first step.
    """

    timestep: ArrayTree
    action: Any
    initial_state: ArrayTree


class Storage(Protocol):
    """Blocks in a ring of slots for each lane."""

    def write(self, lane: int, slot: int, trajectory: Trajectory) -> None:
        """Overwrite a slot with an unroll ``[T+1, B, ...]``, without its last timestep."""

    def read(self, lanes: np.ndarray, slots: np.ndarray, envs: np.ndarray) -> Sequences:
        """The N sequences that start at these blocks, on the device; the arguments are ``[N]``."""

    def blocks(self, lane: int, slot: int) -> list[np.ndarray]:
        """The contents of a slot, on the host: an array ``[B, ...]`` for each leaf."""

    def load(self, lane: int, slot: int, blocks: list[np.ndarray]) -> None:
        """Overwrite a slot with what ``blocks`` returned."""


class Block(NamedTuple):
    """One unroll of one environment ``[T, ...]``, and the recurrent state before it ``[...]``."""

    timestep: ArrayTree
    action: Any
    initial_state: ArrayTree


def block_shapes(agent: Agent, spec: EnvSpec, num_envs: int, unroll_length: int) -> Block:
    """Shapes and dtypes ``[B, T, ...]`` of the blocks of an unroll; B is ``num_envs``."""

    def stacked(shape: tuple[int, ...], dtype: object) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_envs, unroll_length, *shape), dtype)

    observation = jax.tree.map(lambda leaf: stacked(leaf.shape, leaf.dtype), spec.observation)
    number, flag = stacked((), np.float32), stacked((), np.bool_)
    state = jax.eval_shape(lambda: agent.initial_state(num_envs))
    return Block(Timestep(observation, number, number, flag), stacked((), np.int32), state)


def block_of(trajectory: Trajectory) -> Block:
    """The blocks ``[B, T, ...]`` of an unroll ``[T+1, B, ...]``.

    Its last timestep is left out, since it is also the first of the next unroll.
    """
    timestep = jax.tree.map(lambda leaf: leaf[:-1].swapaxes(0, 1), trajectory.timestep)
    return Block(timestep, trajectory.actor.action.swapaxes(0, 1), trajectory.initial_state)


def nbytes(shapes: Block, geometry: Geometry) -> int:
    """Bytes of a ``HostStorage`` whose slots have blocks of these ``shapes`` ``[B, ...]``."""
    per_slot = sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return int(per_slot * geometry.lanes * geometry.slots)


def nbytes_of_sequence(shapes: Block, geometry: Geometry) -> int:
    """Bytes of one of the ``Sequences`` that ``read`` gives."""

    def per_env(tree: ArrayTree) -> int:
        return nbytes(Block(tree, (), ()), Geometry(1, 1, 1, 1)) // geometry.num_envs

    length = shapes.action.shape[1]
    steps = per_env((shapes.timestep, shapes.action)) * geometry.span
    return steps + per_env(shapes.timestep) // length + per_env(shapes.initial_state)


class HostStorage:
    """NumPy arrays in host memory; ``read`` starts the copy to the device."""

    def __init__(self, shapes: Block, geometry: Geometry, device: jax.Device) -> None:
        """``shapes``: shapes and dtypes of one slot's blocks, ``[B, ...]``."""
        lead = (geometry.lanes, geometry.slots)
        # The kernel hands out the pages of large zero arrays when they are first written, so the
        # memory in use grows as the replay fills.
        self._data: Block = jax.tree.map(
            lambda leaf: np.zeros(lead + leaf.shape, leaf.dtype), shapes
        )
        self._geometry = geometry
        self._device = device

    def write(self, lane: int, slot: int, trajectory: Trajectory) -> None:
        # The extras are Q values, of which only TD errors are needed, computed on the device.
        host = jax.device_get(trajectory._replace(actor=trajectory.actor._replace(extras=())))

        def copy(data: np.ndarray, value: np.ndarray) -> None:
            data[lane, slot] = value

        jax.tree.map(copy, self._data, block_of(host))

    def read(self, lanes: np.ndarray, slots: np.ndarray, envs: np.ndarray) -> Sequences:
        span, ring = self._geometry.span, self._geometry.slots
        places = list(zip(lanes.tolist(), slots.tolist(), envs.tolist(), strict=True))

        def gather(data: np.ndarray, last: int) -> np.ndarray:
            """Steps of all sequences; ``last`` is 1 to add the timestep after them, else 0."""
            length = data.shape[3]
            # A copy: inserts may overwrite the slots while the device still reads the batch.
            out = np.empty((len(places), span * length + last, *data.shape[4:]), data.dtype)
            for row, (lane, slot, env) in zip(out, places, strict=True):
                for i in range(span):
                    row[i * length : (i + 1) * length] = data[lane, (slot + i) % ring, env]
                if last:
                    row[-1] = data[lane, (slot + span) % ring, env, 0]
            return out

        sequences = Sequences(
            jax.tree.map(lambda data: gather(data, 1), self._data.timestep),
            gather(self._data.action, 0),
            jax.tree.map(lambda data: data[lanes, slots, envs], self._data.initial_state),
        )
        return jax.device_put(sequences, self._device)

    def blocks(self, lane: int, slot: int) -> list[np.ndarray]:
        return [leaf[lane, slot] for leaf in jax.tree.leaves(self._data)]

    def load(self, lane: int, slot: int, blocks: list[np.ndarray]) -> None:
        for leaf, block in zip(jax.tree.leaves(self._data), blocks, strict=True):
            leaf[lane, slot] = block


class DevicePrograms:
    """What runs on a learner device to write to a storage there, and to read from it.

    All blocks are rows of words (see ``packing``) in one array ``[lanes x slots x B, rows, 128]``.
    """

    def __init__(self, shapes: Block, geometry: Geometry) -> None:
        """``shapes``: shapes and dtypes of one slot's blocks, ``[B, ...]``."""
        self._geometry = geometry
        self._slot = jax.tree.map(
            # As arrays on devices are: without 64 bits, unless JAX is told to use them.
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)
            ),
            shapes,
        )
        self._packing = Packing(
            jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self._slot)
        )
        blocks = geometry.lanes * geometry.slots * geometry.num_envs
        self.data = jax.ShapeDtypeStruct((blocks, self._packing.rows, LANES), np.uint32)

    def write(self, data: jax.Array, block: Block, place: jax.Array) -> jax.Array:
        """``data`` with ``block`` at the (lane, slot) in ``place``."""
        # Typed as the storage is: a snapshot of before may have other types.
        block = jax.tree.map(lambda leaf, slot: leaf.astype(slot.dtype), block, self._slot)
        return jax.lax.dynamic_update_slice_in_dim(
            data, self._packing.pack(block), self._first(place), 0
        )

    def read(
        self, data: jax.Array, lanes: jax.Array, slots: jax.Array, envs: jax.Array
    ) -> Sequences:
        """The sequences that start at these blocks."""
        span, ring, num_envs = self._geometry.span, self._geometry.slots, self._geometry.num_envs
        # [N, span + 1], since the timestep after a sequence is in one block more.
        slots = (slots[:, None] + jnp.arange(span + 1)) % ring
        rows = (lanes[:, None] * ring + slots) * num_envs + envs[:, None]
        blocks = self._packing.unpack(data[rows.reshape(-1)])

        def steps(leaf: jax.Array, last: int) -> jax.Array:
            """Steps of all sequences; ``last`` is 1 to add the timestep after them, else 0."""
            whole = leaf.reshape(rows.shape[0], -1, *leaf.shape[2:])
            return whole[:, : span * leaf.shape[1] + last]

        return Sequences(
            jax.tree.map(lambda leaf: steps(leaf, 1), blocks.timestep),
            steps(blocks.action, 0),
            jax.tree.map(lambda leaf: leaf[:: span + 1], blocks.initial_state),
        )

    def slot(self, data: jax.Array, place: jax.Array) -> Block:
        """The blocks at the (lane, slot) in ``place``."""
        first, size = self._first(place), self._geometry.num_envs
        return self._packing.unpack(jax.lax.dynamic_slice_in_dim(data, first, size))

    def lower(
        self, device: jax.Device, count: int
    ) -> tuple[jax.stages.Lowered, jax.stages.Lowered]:
        """``read`` of ``count`` sequences and ``write``, for a device that need not be there."""
        here = SingleDeviceSharding(device)

        def on(tree: ArrayTree) -> Any:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), tree
            )

        number, place = (
            jax.ShapeDtypeStruct((count,), np.int32),
            jax.ShapeDtypeStruct((2,), np.int32),
        )
        read = jax.jit(self.read).lower(on(self.data), *[on(number)] * 3)
        write = jax.jit(self.write, donate_argnums=0)
        return read, write.lower(on(self.data), on(self._slot), on(place))

    def _first(self, place: jax.Array) -> jax.Array:
        """The first row of a slot."""
        return (place[0] * self._geometry.slots + place[1]) * self._geometry.num_envs


class DeviceStorage:
    """One array on the learner device itself, written in place by donation."""

    def __init__(self, shapes: Block, geometry: Geometry, device: jax.Device) -> None:
        """``shapes``: shapes and dtypes of one slot's blocks, ``[B, ...]``."""
        programs = DevicePrograms(shapes, geometry)
        self._structure = jax.tree.structure(shapes)
        self._device = device
        # Otherwise the zeros would be made on the default device first, which need not have room.
        with jax.default_device(device):
            zeros = jnp.zeros(programs.data.shape, programs.data.dtype)
            self._data: jax.Array = jax.device_put(zeros, device)
        self._write = jax.jit(programs.write, donate_argnums=0)
        self._read = jax.jit(programs.read)
        self._slot = jax.jit(programs.slot)
        # A snapshot reads in another thread. A write donates the array, which invalidates it for a
        # reader that still holds it.
        self._lock = threading.Lock()

    def write(self, lane: int, slot: int, trajectory: Trajectory) -> None:
        self._store(lane, slot, block_of(trajectory))

    def read(self, lanes: np.ndarray, slots: np.ndarray, envs: np.ndarray) -> Sequences:
        places = (place.astype(np.int32) for place in (lanes, slots, envs))
        return self._read(self._data, *jax.device_put(tuple(places), self._device))

    def blocks(self, lane: int, slot: int) -> list[np.ndarray]:
        # The results are arrays of their own: once they are dispatched, a write can no longer harm
        # them, and waiting for their values needs no lock.
        with self._lock:
            blocks = self._slot(self._data, self._place(lane, slot))
        return [np.asarray(block) for block in jax.tree.leaves(blocks)]

    def load(self, lane: int, slot: int, blocks: list[np.ndarray]) -> None:
        self._store(lane, slot, jax.tree.unflatten(self._structure, blocks))

    def _store(self, lane: int, slot: int, block: Block) -> None:
        block = jax.device_put(block, self._device)
        with self._lock:
            self._data = self._write(self._data, block, self._place(lane, slot))

    def _place(self, lane: int, slot: int) -> jax.Array:
        return jax.device_put(np.array([lane, slot], np.int32), self._device)
