"""The synchronised update that all learners share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sebulba import hosts
from sebulba.config import OptimiserConfig
from sebulba.topology import LEARNER_AXIS, Topology
from sebulba.types import ArrayTree, Params, Trajectory

Logs = dict[str, jax.Array]


class Delivery(NamedTuple):
    """One unroll as it reaches the learner.

    Attributes:
      lane: number of the actor, on this host, that it came from.
      parts: its trajectories, one on each of this host's learner devices, cut along B.
    """

    lane: int
    parts: Sequence[Trajectory]


class TrainState(NamedTuple):
    """What an update turns into the next; the same on every learner device."""

    params: Params
    opt_state: Any


class Learner(Protocol):
    """One algorithm. Each method is called by one thread, in the same order on every host."""

    def init(self, key: jax.Array) -> Any:
        """The first state, on every learner device."""

    def params(self, state: Any) -> Params:
        """The parameters that actors should use."""

    def add(self, deliveries: Sequence[Delivery]) -> int:
        """Take in the unrolls of this turn; returns how many updates are due.

        The number depends on counts alone, so that it is the same on every host.
        """

    def update(self, state: Any) -> tuple[Any, Logs]:
        """One update; ``state`` is donated. The logs are scalars."""

    # What follows has defaults, for learners that keep nothing but their state.

    def metrics(self) -> dict[str, float]:
        """More numbers for a row of metrics, of this host; counted, not measured on a device."""
        return {}

    def describe(self) -> str | None:
        """A line to print at the start."""
        return None

    def save_memory(self, path: Path) -> None:
        """Start writing what is no part of the state, such as a replay, to ``path``."""
        return None

    def load_memory(self, path: Path) -> str | None:
        """Read what ``save_memory`` wrote; a line to print where that could not be."""
        return None

    def close(self) -> None:
        """Wait for what is being written."""
        return None


def make_optimiser(config: OptimiserConfig, num_updates: int) -> optax.GradientTransformation:
    """Clip by global norm, then RMSProp or Adam; the rate may fall linearly over the updates."""
    rate: optax.ScalarOrSchedule = config.learning_rate
    if config.decay_to_zero:
        rate = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    if config.name == "adam":
        rule = optax.adam(rate, eps=config.epsilon)
    else:
        rule = optax.rmsprop(rate, decay=config.rms_decay, eps=config.epsilon)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), rule)


class LossOutput(NamedTuple):
    """What a loss gives beside its value.

    Attributes:
      logs: scalars, means over T x B.
      per_sequence: arrays ``[B, ...]``, such as new priorities; ``()`` where there are none.
    """

    logs: Logs
    per_sequence: ArrayTree = ()


class Batch(NamedTuple):
    """How a batch is laid out and used.

    Attributes:
      axes: prefix of the batch's tree, with the axis of B in each part.
      loss: ``loss(params, fixed, batch)``, the mean over T x B, and what goes with it.
    """

    axes: Any
    loss: Callable[[Params, ArrayTree, Any], tuple[jax.Array, LossOutput]]


class SynchronisedUpdate:
    """Loss, gradient and its mean over all learner devices, then the optimiser.

    Only the loss and its gradient run per device, in one ``shard_map``; the rest is in global
    view, on parameters that are the same everywhere.
    """

    def __init__(
        self,
        batch: Batch,
        optimiser: optax.GradientTransformation,
        topology: Topology,
        pieces: int = 1,
    ) -> None:
        """``pieces``: dispatch the gradient in this many parts of the batch.

        Several short computations let an inference device that also learns act in between.
        """
        self._batch = batch
        self._optimiser = optimiser
        self._topology = topology
        self._pieces = pieces
        self._whole = jax.jit(self._update, donate_argnums=0)
        self._piece = jax.jit(self._accumulate, donate_argnums=2)
        self._apply = jax.jit(self._finish, donate_argnums=0)
        self._replicated = topology.replicated()

    @functools.cached_property
    def _indices(self) -> list[jax.Array | None]:
        if self._pieces == 1:
            return [None]
        return [jax.device_put(jnp.int32(i), self._replicated) for i in range(self._pieces)]

    def __call__(
        self, state: TrainState, batch: ArrayTree, fixed: ArrayTree = ()
    ) -> tuple[TrainState, Logs, list[ArrayTree]]:
        """One update: the new state, logs, and the loss's ``per_sequence`` of each piece.

        ``batch`` holds global arrays divided along B, ``fixed`` replicated ones. Each piece is an
        equal part of every device's share of B, in order.
        """
        if self._in_one_call:
            state, logs, part = self._whole(state, fixed, batch)
            return state, logs, [part]
        total: Any = None
        per_sequence: list[ArrayTree] = []
        for index in self._indices:
            total, part = self._piece(state.params, fixed, total, batch, index)
            per_sequence.append(part)
        total = hosts.combine("mean", total, self._topology)
        new_state, logs = self._apply(state, total)
        return new_state, logs, per_sequence

    @property
    def _in_one_call(self) -> bool:
        return self._pieces == 1 and self._topology.averaging == "devices"

    def lower(
        self, state: TrainState, batch: ArrayTree, fixed: ArrayTree = ()
    ) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each runs; nothing is computed.

        Arguments are as for a call, but may be ``jax.ShapeDtypeStruct`` with shardings on devices
        that this machine does not have.
        """
        if self._in_one_call:
            return [(self._whole.lower(state, fixed, batch), 1)]
        index = None
        if self._pieces > 1:
            index = jax.ShapeDtypeStruct((), jnp.int32, sharding=self._replicated)
        first = self._piece.lower(state.params, fixed, None, batch, index)
        shapes, _ = first.out_info
        total = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._replicated),
            shapes,
        )
        programs = [(first, 1), (self._apply.lower(state, total), 1)]
        if self._pieces > 1:
            more = self._piece.lower(state.params, fixed, total, batch, index)
            programs.insert(1, (more, self._pieces - 1))
        return programs

    def gradient(
        self, params: Params, fixed: ArrayTree, batch: ArrayTree, index: jax.Array | None = None
    ) -> tuple[Params, Logs, ArrayTree]:
        """Gradient and logs, averaged over the devices of the learner mesh."""
        axes = self._batch.axes

        def local(params: Params, fixed: ArrayTree, batch: ArrayTree) -> Any:
            if index is not None:
                batch = _take_piece(batch, axes, index, self._pieces)
            gradient, output = jax.grad(self._batch.loss, has_aux=True)(params, fixed, batch)
            mean = lax.pmean((gradient, output.logs), LEARNER_AXIS)
            return *mean, output.per_sequence

        # With check_vma=True, pmean(grad(loss)) would be N times too large.
        gradient: tuple[Params, Logs, ArrayTree] = jax.shard_map(
            local,
            mesh=self._topology.mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), jax.tree.map(_spec, axes)),
            out_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec(LEARNER_AXIS)),
            check_vma=False,
        )(params, fixed, batch)
        return gradient

    def _update(
        self, state: TrainState, fixed: ArrayTree, batch: ArrayTree
    ) -> tuple[TrainState, Logs, ArrayTree]:
        gradient, logs, per_sequence = self.gradient(state.params, fixed, batch)
        return *self._finish(state, (gradient, logs)), per_sequence

    def _accumulate(
        self,
        params: Params,
        fixed: ArrayTree,
        total: Any,
        batch: ArrayTree,
        index: jax.Array | None,
    ) -> tuple[Any, ArrayTree]:
        gradient, logs, per_sequence = self.gradient(params, fixed, batch, index)
        piece = jax.tree.map(lambda leaf: leaf / self._pieces, (gradient, logs))
        return piece if total is None else jax.tree.map(jnp.add, total, piece), per_sequence

    def _finish(self, state: TrainState, total: tuple[Params, Logs]) -> tuple[TrainState, Logs]:
        gradient, logs = total
        updates, opt_state = self._optimiser.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        logs = {**logs, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(params, opt_state), logs


TRAJECTORY_AXES: Any = Trajectory(timestep=1, actor=1, initial_state=0)  # type: ignore[arg-type]
"""The axis of B in each part of a trajectory."""


def assemble(parts: Sequence[ArrayTree], axes: Any, topology: Topology) -> Any:
    """Global arrays from this host's parts, one on each of its learner devices.

    Nothing is copied: the parts become the shards of arrays that span the learner mesh. ``axes``
    is a prefix of the parts' tree with the axis of B.
    """

    def join_all(axis: int, *trees: ArrayTree) -> Any:
        sharding = NamedSharding(topology.mesh, _spec(axis))

        def join(*shards: jax.Array) -> jax.Array:
            shape = list(shards[0].shape)
            shape[axis] *= topology.mesh.size
            return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(shards))

        return jax.tree.map(join, *trees)

    return jax.tree.map(join_all, axes, *parts)


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Join trajectories along B."""

    def join_all(axis: int, *trees: ArrayTree) -> Any:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=axis), *trees)

    if len(trajectories) == 1:
        return trajectories[0]
    joined: Trajectory = jax.tree.map(join_all, TRAJECTORY_AXES, *trajectories)
    return joined


def clip_rewards(rewards: jax.Array, limit: float | None) -> jax.Array:
    """Rewards within +- ``limit``; as they are where it is None."""
    return rewards if limit is None else jnp.clip(rewards, -limit, limit)


class TurnCount(NamedTuple):
    """What all hosts know of a turn, int32 ``[]``.

    Attributes:
      steps: real agent steps of all hosts: not the ignored auto-reset ones.
      interrupts: above 0 where a host was asked to stop.
    """

    steps: jax.Array
    interrupts: jax.Array


def count_turn(deliveries: Sequence[Delivery], interrupted: bool, topology: Topology) -> TurnCount:
    """Add up over all hosts; ``interrupted`` is this host's own."""
    firsts = [
        assemble([part.timestep.first for part in delivery.parts], 1, topology)
        for delivery in deliveries
    ]
    flag = np.full(1, interrupted, np.int32)
    flags = [jax.device_put(flag, device) for device in topology.learners]
    count: TurnCount = _count(firsts, assemble(flags, 0, topology))
    return hosts.combine("sum", count, topology)


@jax.jit
def _count(firsts: Sequence[jax.Array], flags: jax.Array) -> TurnCount:
    steps = sum((jnp.sum(~first[1:], dtype=jnp.int32) for first in firsts), jnp.int32(0))
    return TurnCount(steps, jnp.sum(flags))


def _spec(axis: int) -> PartitionSpec:
    return PartitionSpec(*[None] * axis, LEARNER_AXIS)


def _take_piece(batch: ArrayTree, axes: Any, index: jax.Array, pieces: int) -> ArrayTree:
    def take_all(axis: int, tree: ArrayTree) -> Any:
        def take(leaf: jax.Array) -> jax.Array:
            size = leaf.shape[axis] // pieces
            return lax.dynamic_slice_in_dim(leaf, index * size, size, axis=axis)

        return jax.tree.map(take, tree)

    return jax.tree.map(take_all, axes, batch)
