"""The synchronized update that all learners share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec

from sebulba.devices.topology import LEARNER_AXIS, Topology
from sebulba.learners.base import Logs
from sebulba.learners.sharding import spec_of
from sebulba.types import ArrayTree, Params


class TrainState(NamedTuple):
    """What an update turns into the next; the same on every learner device."""

    params: Params
    opt_state: Any


class LossOutput(NamedTuple):
    """What a loss gives beside its value.

    Attributes:
      logs: scalars, means over T x B.
      per_sequence: arrays ``[B, ...]``, such as new priorities; ``()`` where there are none.
    """

    logs: Logs
    per_sequence: ArrayTree = ()


Batch = tuple[Any, ...]
"""Parts of one batch, of the same kind, such as the trajectories of several actors."""
Loss = Callable[[Params, ArrayTree, Batch], tuple[jax.Array, LossOutput]]
"""``loss(params, fixed, batch)``: the mean over T x B, and what goes with it. ``fixed`` is what the
loss needs beside the parameters, such as a target network; it has no gradient."""


class SynchronizedUpdate:
    """Loss, gradient and its mean over all learner devices, then the optimizer.

    Only the loss and its gradient run per device, in one ``shard_map``; the rest is in global
    view, on parameters that are the same everywhere.
    """

    def __init__(
        self,
        loss: Loss,
        axes: Any,
        optimizer: optax.GradientTransformation,
        topology: Topology,
        num_microbatches: int = 1,
    ) -> None:
        """``axes``: prefix of the tree of each part of a batch, with the axis of B.

        The gradient is computed in ``num_microbatches`` calls, each on an equal part of every
        device's share of B. Several short computations let an inference device that also learns
        act in between.
        """
        self._loss = loss
        self._axes = axes
        self._optimizer = optimizer
        self._topology = topology
        self._num_microbatches = num_microbatches
        self._one_call = jax.jit(self._update, donate_argnums=0)
        self._gradient = jax.jit(self.gradient)
        self._apply = jax.jit(self._apply_mean, donate_argnums=0)

    def __call__(
        self, state: TrainState, batch: Batch, fixed: ArrayTree = ()
    ) -> tuple[TrainState, Logs, list[ArrayTree]]:
        """One update: the new state, logs, and the loss's ``per_sequence`` of each microbatch.

        ``batch`` holds global arrays divided along B, ``fixed`` replicated ones.
        """
        if self._num_microbatches == 1:
            state, logs, per_sequence = self._one_call(state, batch, fixed)
            return state, logs, [per_sequence]
        parts = [self._gradient(state.params, batch, fixed, index) for index in self._indices]
        state, logs = self._apply(state, [part[:2] for part in parts])
        return state, logs, [per_sequence for _, _, per_sequence in parts]

    def lower(
        self, state: TrainState, batch: Batch, fixed: ArrayTree = ()
    ) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each runs; nothing is computed.

        Arguments are as for a call, but may be ``jax.ShapeDtypeStruct`` with shardings on devices
        that this machine does not have.
        """
        if self._num_microbatches == 1:
            return [(self._one_call.lower(state, batch, fixed), 1)]
        replicated = self._topology.replicated()
        index = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
        gradient = self._gradient.lower(state.params, batch, fixed, index)
        part = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated),
            gradient.out_info[:2],
        )
        apply = self._apply.lower(state, [part] * self._num_microbatches)
        return [(gradient, self._num_microbatches), (apply, 1)]

    def gradient(
        self, params: Params, batch: Batch, fixed: ArrayTree, index: jax.Array | None = None
    ) -> tuple[Params, Logs, ArrayTree]:
        """Gradient and logs, averaged over the devices of the learner mesh.

        Of the whole batch, or of the microbatch ``index``.
        """
        axes = (self._axes,) * len(batch)

        def local(params: Params, batch: Batch, fixed: ArrayTree) -> Any:
            if index is not None:
                batch = _take(batch, axes, index, self._num_microbatches)
            gradient, output = jax.grad(self._loss, has_aux=True)(params, fixed, batch)
            mean = lax.pmean((gradient, output.logs), LEARNER_AXIS)
            return *mean, output.per_sequence

        # With check_vma=True, pmean(grad(loss)) would be N times too large.
        gradient: tuple[Params, Logs, ArrayTree] = jax.shard_map(
            local,
            mesh=self._topology.mesh,
            in_specs=(PartitionSpec(), jax.tree.map(spec_of, axes), PartitionSpec()),
            out_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec(LEARNER_AXIS)),
            check_vma=False,
        )(params, batch, fixed)
        return gradient

    @functools.cached_property
    def _indices(self) -> list[jax.Array]:
        replicated = self._topology.replicated()
        return [jax.device_put(jnp.int32(i), replicated) for i in range(self._num_microbatches)]

    def _update(
        self, state: TrainState, batch: Batch, fixed: ArrayTree
    ) -> tuple[TrainState, Logs, ArrayTree]:
        gradient, logs, per_sequence = self.gradient(state.params, batch, fixed)
        return *self._apply_mean(state, [(gradient, logs)]), per_sequence

    def _apply_mean(
        self, state: TrainState, parts: list[tuple[Params, Logs]]
    ) -> tuple[TrainState, Logs]:
        gradient, logs = jax.tree.map(lambda *leaves: _mean(leaves), *parts)
        updates, opt_state = self._optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        logs = {**logs, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(params, opt_state), logs


def _mean(leaves: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, leaves) / len(leaves)


def _take(batch: Batch, axes: Any, index: jax.Array, num_microbatches: int) -> Batch:
    def take_all(axis: int, tree: ArrayTree) -> Any:
        def take(leaf: jax.Array) -> jax.Array:
            size = leaf.shape[axis] // num_microbatches
            return lax.dynamic_slice_in_dim(leaf, index * size, size, axis=axis)

        return jax.tree.map(take, tree)

    taken: Batch = jax.tree.map(take_all, axes, batch)
    return taken
