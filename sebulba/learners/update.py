"""The synchronized update that all learners share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec

from sebulba.devices.topology import LEARNER_AXIS, Topology
from sebulba.learners.base import Logs
from sebulba.learners.sharding import part_of, spec_of
from sebulba.types import Agent, ArrayTree, Params, Timestep


class TrainState(NamedTuple):
    """What one update changes; replicated on every learner device."""

    params: Params
    opt_state: Any


class LossOutput(NamedTuple):
    """What a loss returns besides its value.

    Attributes:
      logs: scalars, means over T x B.
      per_sequence: arrays ``[B, ...]``, such as new priorities; ``()`` if there are none.
      measured: what ``absorb`` of the agent gets, means over T x B; ``()`` if it has none.
    """

    logs: Logs
    per_sequence: ArrayTree = ()
    measured: ArrayTree = ()


def measure(agent: Agent, params: Params, timesteps: Timestep) -> ArrayTree:
    """What the agent measures of timesteps ``[T, B, ...]``, if it does: see ``types.Agent``.

    To be called in a ``Loss``.
    """
    if not hasattr(agent, "measure"):
        return ()
    return agent.measure(params, timesteps, lambda tree: lax.pmean(tree, LEARNER_AXIS))


Mean = tuple[Params, Logs, ArrayTree]
"""The gradient, the logs, and what was measured."""
Batch = tuple[Any, ...]
"""The parts of one batch, all of one kind, such as the trajectories of several actors."""
Loss = Callable[[Params, ArrayTree, jax.Array, Batch], tuple[jax.Array, LossOutput]]
"""``loss(params, fixed, progress, batch)``: a mean over T x B, and a ``LossOutput``. ``fixed`` is
what the loss needs besides the parameters, such as a target network; it gets no gradient.
``progress`` is a float32 scalar, the share of the training that is done."""


class SynchronizedUpdate:
    """The gradient of a loss, averaged over the learner devices of all hosts, then the optimizer.

    Only the loss and its gradient are written per device, in one ``shard_map``. The optimizer is
    ordinary code under ``jit``, on parameters and gradients that are replicated.
    """

    def __init__(
        self,
        loss: Loss,
        axes: Any,
        optimizer: optax.GradientTransformation,
        topology: Topology,
        num_microbatches: int = 1,
        agent: Agent | None = None,
    ) -> None:
        """Builds the update; nothing is compiled yet.

        Args:
          loss: computed on each device's share of a batch.
          axes: prefix of the tree of each part of a batch, with the axis of B.
          optimizer: any Optax optimizer that needs gradients and parameters alone.
          topology: the learner devices of all hosts.
          num_microbatches: calls in which the gradient is computed, each on an equal part of every
            device's share of B. With several short calls, a device that also acts can act between
            them.
          agent: absorbs what the loss measured, after the optimizer; None if it measures nothing.
        """
        self._loss = loss
        self._absorb = getattr(agent, "absorb", None)
        self._axes = axes
        # Optimizers of the user's own may not know of ``progress``.
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._topology = topology
        self._num_microbatches = num_microbatches
        self._one_call = jax.jit(self.whole, donate_argnums=0)
        # Not donated: all microbatches read the same parameters, and ``_apply`` after them.
        self._gradient = jax.jit(self.gradient)
        self._apply = jax.jit(self._apply_mean, donate_argnums=0)

    def __call__(
        self, state: TrainState, batch: Batch, fixed: ArrayTree = (), progress: float = 0.0
    ) -> tuple[TrainState, Logs, list[ArrayTree]]:
        """One update; ``state`` is donated.

        Args:
          state: replicated.
          batch: global arrays, divided over the learner devices along B.
          fixed: replicated; see ``Loss``.
          progress: share of the training that is done, from 0 to 1, for the loss, and for learning
            rates that decay. The same on all hosts.

        Returns:
          The new state, logs, and the loss's ``per_sequence`` of each microbatch.
        """
        # A NumPy scalar is an argument of the compiled program; a float would be a constant in it.
        done = np.float32(progress)
        if self._num_microbatches == 1:
            state, logs, per_sequence = self._one_call(state, batch, fixed, done)
            return state, logs, [per_sequence]
        # A Python loop, not lax.scan: on a device that also acts, an actor's step can run between
        # two programs but not in the middle of one.
        parts: list[tuple[Mean, ArrayTree]] = []
        for index in self._indices:
            # One at a time. All at once, each would need memory of its own, which is in no cache,
            # and an actor's step would wait for all of them.
            jax.block_until_ready(parts[-1:])
            parts.append(self._gradient(state.params, batch, fixed, done, index))
        state, logs = self._apply(state, [mean for mean, _ in parts], done)
        return state, logs, [per_sequence for _, per_sequence in parts]

    def lower(
        self, state: TrainState, batch: Batch, fixed: ArrayTree = ()
    ) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each of them runs; nothing is computed.

        The arguments are those of a call, but may be ``jax.ShapeDtypeStruct`` with shardings on
        devices that this machine does not have.
        """
        done = np.float32(0)
        if self._num_microbatches == 1:
            return [(self._one_call.lower(state, batch, fixed, done), 1)]
        replicated = self._topology.replicated()
        index = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
        gradient = self._gradient.lower(state.params, batch, fixed, done, index)
        part = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated),
            gradient.out_info[0],
        )
        apply = self._apply.lower(state, [part] * self._num_microbatches, done)
        return [(gradient, self._num_microbatches), (apply, 1)]

    def gradient(
        self,
        params: Params,
        batch: Batch,
        fixed: ArrayTree,
        progress: jax.Array,
        index: jax.Array | None = None,
    ) -> tuple[Mean, ArrayTree]:
        """What is averaged over the learner mesh, and ``per_sequence``.

        Args:
          params: replicated.
          batch: global arrays, divided over the learner devices along B.
          fixed: replicated; see ``Loss``.
          progress: likewise.
          index: int32 ``[]``, the microbatch to take; None takes the whole batch.
        """
        axes = (self._axes,) * len(batch)

        def local(params: Params, batch: Batch, fixed: ArrayTree, progress: jax.Array) -> Any:
            if index is not None:
                batch = part_of(batch, axes, index, self._num_microbatches)
            gradient, output = jax.grad(self._loss, has_aux=True)(params, fixed, progress, batch)
            # Devices have equal shares and each loss is a mean, so the mean of the means is that
            # of the whole batch, on any number of devices.
            mean = (gradient, output.logs, output.measured)
            # Of a single device, XLA would still copy the gradient.
            if self._topology.mesh.size > 1:
                mean = lax.pmean(mean, LEARNER_AXIS)
            return mean, output.per_sequence

        # With check_vma=True, JAX would already sum the gradient with respect to replicated
        # parameters over the N devices, and the pmean of that sum would be N times too large.
        return jax.shard_map(
            local,
            mesh=self._topology.mesh,
            in_specs=(PartitionSpec(), jax.tree.map(spec_of, axes), *(PartitionSpec(),) * 2),
            out_specs=(PartitionSpec(), PartitionSpec(LEARNER_AXIS)),
            check_vma=False,
        )(params, batch, fixed, progress)

    @functools.cached_property
    def _indices(self) -> list[jax.Array]:
        # Arrays, so that one compiled program serves all microbatches; placed once, so that an
        # update sends nothing to the devices.
        replicated = self._topology.replicated()
        return [jax.device_put(jnp.int32(i), replicated) for i in range(self._num_microbatches)]

    def whole(
        self, state: TrainState, batch: Batch, fixed: ArrayTree, progress: jax.Array
    ) -> tuple[TrainState, Logs, ArrayTree]:
        """What a call does, in one piece, to be part of another program."""
        mean, per_sequence = self.gradient(state.params, batch, fixed, progress)
        return *self._apply_mean(state, [mean], progress), per_sequence

    def _apply_mean(
        self, state: TrainState, parts: list[Mean], progress: jax.Array
    ) -> tuple[TrainState, Logs]:
        gradient, logs, measured = jax.tree.map(lambda *leaves: _mean(leaves), *parts)
        updates, opt_state = self._optimizer.update(
            gradient, state.opt_state, state.params, progress=progress
        )
        params = optax.apply_updates(state.params, updates)
        if self._absorb is not None:
            params = self._absorb(params, state.params, measured)
        # The norm before the optimizer clips it.
        logs = {**logs, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(params, opt_state), logs


def _mean(leaves: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, leaves) / len(leaves)
