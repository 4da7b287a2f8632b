"""Storage of replayed unrolls, in host memory or on a learner device.

Both kinds keep every environment step once, in arrays ``[lanes, slots, B, T, ...]``. A block is one
unroll of one environment; its recurrent state, in arrays ``[lanes, slots, B, ...]``, is the one
before its first step. A sequence is ``span`` consecutive slots of one lane and environment, and
the first timestep of the slot after them.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

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
    """Bytes of a storage whose slots have blocks of these ``shapes`` ``[B, ...]``."""
    per_slot = sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return int(per_slot * geometry.lanes * geometry.slots)


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


class DeviceStorage:
    """Arrays on the learner device itself, written in place by donation."""

    def __init__(self, shapes: Block, geometry: Geometry, device: jax.Device) -> None:
        """``shapes``: shapes and dtypes of one slot's blocks, ``[B, ...]``."""
        lead = (geometry.lanes, geometry.slots)
        self._geometry = geometry
        self._device = device
        # Otherwise the zeros would be made on the default device first, which need not have room.
        with jax.default_device(device):
            self._data: Block = jax.device_put(
                jax.tree.map(lambda leaf: jnp.zeros(lead + leaf.shape, leaf.dtype), shapes), device
            )
        self._write = jax.jit(_write, donate_argnums=0)
        self._read = jax.jit(self._gather)
        # A snapshot reads in another thread. A write donates the arrays, which invalidates them for
        # a reader that still holds them.
        self._lock = threading.Lock()

    def write(self, lane: int, slot: int, trajectory: Trajectory) -> None:
        self._store(lane, slot, block_of(trajectory))

    def read(self, lanes: np.ndarray, slots: np.ndarray, envs: np.ndarray) -> Sequences:
        return self._read(self._data, *jax.device_put((lanes, slots, envs), self._device))

    def blocks(self, lane: int, slot: int) -> list[np.ndarray]:
        # Slices are arrays of their own: once they are dispatched, a write can no longer harm them,
        # and waiting for their values needs no lock.
        with self._lock:
            blocks = [leaf[lane, slot] for leaf in jax.tree.leaves(self._data)]
        return [np.asarray(block) for block in blocks]

    def load(self, lane: int, slot: int, blocks: list[np.ndarray]) -> None:
        self._store(lane, slot, jax.tree.unflatten(jax.tree.structure(self._data), blocks))

    def _store(self, lane: int, slot: int, block: Block) -> None:
        place, block = jax.device_put((np.array([lane, slot], np.int32), block), self._device)
        with self._lock:
            self._data = self._write(self._data, block, place)

    def _gather(
        self, data: Block, lanes: jax.Array, slots: jax.Array, envs: jax.Array
    ) -> Sequences:
        span, ring = self._geometry.span, self._geometry.slots

        def gather(leaf: jax.Array, last: bool) -> jax.Array:
            parts = [leaf[lanes, (slots + i) % ring, envs] for i in range(span)]
            if last:
                parts.append(leaf[lanes, (slots + span) % ring, envs][:, :1])
            return jnp.concatenate(parts, axis=1)

        return Sequences(
            jax.tree.map(lambda leaf: gather(leaf, True), data.timestep),
            gather(data.action, False),
            jax.tree.map(lambda leaf: leaf[lanes, slots, envs], data.initial_state),
        )


def _write(data: Block, block: Block, place: jax.Array) -> Block:
    """``data`` with ``block`` at the (lane, slot) in ``place``; in place, since it is donated."""

    def write(leaf: jax.Array, value: jax.Array) -> jax.Array:
        start = [place[0], place[1], *[jnp.zeros_like(place[0])] * value.ndim]
        return jax.lax.dynamic_update_slice(leaf, value[None, None].astype(leaf.dtype), start)

    return jax.tree.map(write, data, block)
