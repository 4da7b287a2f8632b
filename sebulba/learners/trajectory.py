"""The base of learners that learn once from every trajectory, in order of arrival."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax
import optax

from sebulba.devices.topology import Topology
from sebulba.learners.base import Learner, Logs
from sebulba.learners.forms import checked_loss
from sebulba.learners.sharding import TRAJECTORY_AXES, abstract, assemble, concatenate
from sebulba.learners.update import Batch, LossOutput, SynchronizedUpdate, TrainState, measure
from sebulba.types import Agent, ArrayTree, Params, Trajectory, Unroll


class TrajectoryLearner(Learner):
    """One update in each turn, on all trajectories of that turn. A subclass defines ``loss``.

    Attributes:
      agent: whose parameters are learned.
    """

    def __init__(
        self,
        agent: Agent,
        optimizer: optax.GradientTransformation,
        topology: Topology,
        unrolls_per_turn: int = 1,
        num_microbatches: int = 1,
    ) -> None:
        """Builds the update; nothing is computed yet.

        Args:
          agent: provides the initial parameters.
          optimizer: any Optax optimizer.
          topology: the learner devices.
          unrolls_per_turn: unrolls of this host in one update; only ``lower`` needs it.
          num_microbatches: must divide the environments that an actor has for each learner device.
        """
        self.agent = agent
        self._optimizer = optimizer
        self._topology = topology
        self._unrolls_per_turn = unrolls_per_turn
        self.synchronized = SynchronizedUpdate(
            self._loss, TRAJECTORY_AXES, optimizer, topology, num_microbatches, agent
        )
        self._turn: tuple[Trajectory, ...] = ()

    @abc.abstractmethod
    def loss(
        self, params: Params, trajectory: Trajectory, progress: jax.Array
    ) -> tuple[jax.Array, Logs]:
        """The loss to differentiate and scalars to log, all of them means over T x B.

        Runs on each learner device with that device's share of B, or with a microbatch of it;
        gradients and logs are averaged afterwards.

        Args:
          params: the agent's parameters.
          trajectory: ``timestep`` ``[T+1, B, ...]``, ``actor`` ``[T, B, ...]`` and
            ``initial_state`` ``[B, ...]``.
          progress: float32 scalar, the share of ``total_steps`` that is done, from 0 to 1, for
            weights that change in the course of training.
        """

    def init(self, key: jax.Array) -> TrainState:
        """Fresh parameters and optimizer state on every learner device."""

        def init(key: jax.Array) -> TrainState:
            params = self.agent.init(key)
            return TrainState(params, self._optimizer.init(params))

        # Every device computes all of it from the same key, so nothing has to be sent.
        return jax.jit(init, out_shardings=self._topology.replicated())(key)

    def params(self, state: TrainState) -> Params:
        """The parameters to act with."""
        return state.params

    def add(self, unrolls: Sequence[Unroll]) -> int:
        """Keep the turn's trajectories for ``update``: one update is due in every turn."""
        self._turn = tuple(
            assemble(unroll.shards, TRAJECTORY_AXES, self._topology) for unroll in unrolls
        )
        return 1

    def update(self, state: TrainState, progress: float) -> tuple[TrainState, Logs]:
        """One synchronized update on this turn's trajectories; ``state`` is donated."""
        state, logs, _ = self.synchronized(state, self._turn, progress=progress)
        return state, logs

    def lower(self, state: Any, shard: Trajectory) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each of them runs."""
        whole = abstract(shard, TRAJECTORY_AXES, self._topology)
        return self.synchronized.lower(state, (whole,) * self._unrolls_per_turn)

    def _loss(
        self, params: Params, _: ArrayTree, progress: jax.Array, trajectories: Batch
    ) -> tuple[jax.Array, LossOutput]:
        """``loss``, in the form that ``SynchronizedUpdate`` takes."""
        # One large batch is faster than a call for each trajectory, and its mean is the same.
        trajectory = concatenate(trajectories)
        total, logs = checked_loss(self, self.loss(params, trajectory, progress))
        measured = measure(self.agent, params, trajectory.timestep)
        return total, LossOutput({"loss": total, **logs}, measured=measured)
