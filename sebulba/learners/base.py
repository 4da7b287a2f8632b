"""The synchronised update that all learners share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sebulba.config import OptimiserConfig
from sebulba.topology import LEARNER_AXIS, Topology
from sebulba.types import ArrayTree, Params, Trajectory

Logs = dict[str, jax.Array]
LossFunction = Callable[[Params, Trajectory], tuple[jax.Array, Logs]]
"""``loss(params, trajectory)``: the mean over T x B, and scalars to log, also means."""

_TIME_MAJOR = PartitionSpec(None, LEARNER_AXIS)
_BATCH_MAJOR = PartitionSpec(LEARNER_AXIS)
# A trajectory is divided over the learner devices along B.
_TRAJECTORY_SPECS: Any = Trajectory(_TIME_MAJOR, _TIME_MAJOR, _BATCH_MAJOR)  # type: ignore[arg-type]


class TrainState(NamedTuple):
    """What a learner's update turns into the next; the same on every learner device."""

    params: Params
    opt_state: Any


class Learner(Protocol):
    """One algorithm. ``update`` is called by one thread, as often on every host."""

    def init(self, key: jax.Array) -> Any:
        """The first state, on every learner device."""

    def params(self, state: Any) -> Params:
        """The parameters that actors should use."""

    def update(self, state: Any, trajectories: Sequence[Trajectory]) -> tuple[Any, Logs]:
        """One update from this turn's trajectories; ``state`` is donated.

        The logs hold ``steps``, the real agent steps of all hosts that came in.
        """


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


class SynchronisedUpdate:
    """Loss, gradient and its mean over all learner devices, then the optimiser.

    Only the loss and its gradient run per device, in one ``shard_map``; the rest is in global
    view, on parameters that are the same everywhere.
    """

    def __init__(
        self,
        loss: LossFunction,
        optimiser: optax.GradientTransformation,
        topology: Topology,
        pieces: int = 1,
    ) -> None:
        """``pieces``: dispatch the gradient in this many parts of the batch.

        Several short computations let an inference device that also learns act in between.
        """
        self._loss = loss
        self._optimiser = optimiser
        self._mesh = topology.mesh
        self._pieces = pieces
        self._whole = jax.jit(self._update, donate_argnums=0)
        self._piece = jax.jit(self._accumulate, donate_argnums=1)
        self._apply = jax.jit(self._finish, donate_argnums=(0, 1))
        self._indices: list[jax.Array] = [
            jax.device_put(jnp.int32(i), topology.replicated()) for i in range(pieces)
        ]

    def __call__(
        self, state: TrainState, trajectories: Sequence[Trajectory]
    ) -> tuple[TrainState, Logs]:
        """One update; ``trajectories`` are global arrays divided along B."""
        batch = tuple(trajectories)
        if self._pieces == 1:
            new_state, logs = self._whole(state, batch)
            return new_state, logs
        total = None
        for index in self._indices:
            total = self._piece(state.params, total, batch, index)
        new_state, logs = self._apply(state, total)
        return new_state, logs

    def gradient(
        self, params: Params, batch: tuple[Trajectory, ...], index: jax.Array | None = None
    ) -> tuple[Params, Logs]:
        """Gradient and logs, averaged over the learner devices of all hosts."""

        def local(params: Params, batch: tuple[Trajectory, ...]) -> tuple[Params, Logs]:
            trajectory = concatenate(batch)
            if index is not None:
                trajectory = _take_piece(trajectory, index, self._pieces)
            gradient, logs = jax.grad(self._loss, has_aux=True)(params, trajectory)
            gradient, logs = lax.pmean((gradient, logs), LEARNER_AXIS)
            steps = jnp.sum(~trajectory.timestep.first[1:], dtype=jnp.int32)
            return gradient, {**logs, "steps": lax.psum(steps, LEARNER_AXIS)}

        # With check_vma=True, pmean(grad(loss)) would be N times too large.
        return jax.shard_map(
            local,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), (_TRAJECTORY_SPECS,) * len(batch)),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(params, batch)

    def _update(self, state: TrainState, batch: tuple[Trajectory, ...]) -> tuple[TrainState, Logs]:
        return self._finish(state, self.gradient(state.params, batch))

    def _accumulate(
        self, params: Params, total: Any, batch: tuple[Trajectory, ...], index: jax.Array
    ) -> tuple[Params, Logs]:
        gradient, logs = self.gradient(params, batch, index)
        steps = logs.pop("steps")
        gradient, logs = jax.tree.map(lambda leaf: leaf / self._pieces, (gradient, logs))
        piece = (gradient, {**logs, "steps": steps})
        return piece if total is None else jax.tree.map(jnp.add, total, piece)

    def _finish(self, state: TrainState, total: tuple[Params, Logs]) -> tuple[TrainState, Logs]:
        gradient, logs = total
        updates, opt_state = self._optimiser.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        logs = {**logs, "gradient_norm": optax.global_norm(gradient)}
        return TrainState(params, opt_state), logs


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Join trajectories along B."""
    if len(trajectories) == 1:
        return trajectories[0]

    def join(axis: int, trees: Sequence[ArrayTree]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=axis), *trees)

    return Trajectory(
        join(1, [trajectory.timestep for trajectory in trajectories]),
        join(1, [trajectory.actor for trajectory in trajectories]),
        join(0, [trajectory.initial_state for trajectory in trajectories]),
    )


def _take_piece(trajectory: Trajectory, index: jax.Array, pieces: int) -> Trajectory:
    def take(axis: int, tree: ArrayTree) -> Any:
        def cut(leaf: jax.Array) -> jax.Array:
            size = leaf.shape[axis] // pieces
            return lax.dynamic_slice_in_dim(leaf, index * size, size, axis=axis)

        return jax.tree.map(cut, tree)

    return Trajectory(
        take(1, trajectory.timestep), take(1, trajectory.actor), take(0, trajectory.initial_state)
    )


def assemble(parts: Sequence[Trajectory], topology: Topology) -> Trajectory:
    """One global trajectory from this host's parts, one on each of its learner devices.

    Nothing is copied: the parts become the shards of arrays that span all hosts.
    """

    def globally(spec: PartitionSpec, axis: int, trees: Sequence[ArrayTree]) -> Any:
        sharding = NamedSharding(topology.mesh, spec)

        def join(*shards: jax.Array) -> jax.Array:
            shape = list(shards[0].shape)
            shape[axis] *= topology.mesh.size
            return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(shards))

        return jax.tree.map(join, *trees)

    return Trajectory(
        globally(_TIME_MAJOR, 1, [part.timestep for part in parts]),
        globally(_TIME_MAJOR, 1, [part.actor for part in parts]),
        globally(_BATCH_MAJOR, 0, [part.initial_state for part in parts]),
    )
