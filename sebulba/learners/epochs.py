"""The base of learners that learn several times from the trajectories of a turn, in minibatches."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec

from sebulba.config import Config, whole_unrolls
from sebulba.devices.topology import LEARNER_AXIS, Topology
from sebulba.learners.base import Learner, Logs
from sebulba.learners.forms import checked_loss, checked_targets, joined_logs
from sebulba.learners.microbatches import fast_in_loops, fewest
from sebulba.learners.minibatches import SAMPLE_AXES, Samples, in_single_steps, shuffle, take
from sebulba.learners.sharding import (
    TRAJECTORY_AXES,
    abstract,
    assemble,
    concatenate,
    described,
    part_of,
    spec_of,
)
from sebulba.learners.update import Batch, LossOutput, SynchronizedUpdate, TrainState, measure
from sebulba.types import (
    Agent,
    ArrayTree,
    Params,
    Trajectory,
    Unroll,
)
from sebulba.validation import ConfigError, Count, Limit, Positive, Share, require


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochConfig(Config):
    """What algorithms share that learn from lambda returns in several epochs of minibatches."""

    num_epochs: Count = 4
    """How often the trajectories of a turn are learned from."""
    num_minibatches: Count = 4
    """Steps of the optimizer in each epoch. Each takes an equal part of all steps, or with an LSTM
    of all trajectories, in random order."""
    discount: Share = 0.99
    """gamma."""
    lambda_: Share = 0.95
    """Decay of the traces, from 0 for one-step targets to 1 for whole returns."""
    reward_clip: Limit = None
    """Rewards are clipped to +- this for learning; metrics report the true ones."""
    reward_scale: Positive = 1.0
    """Rewards are multiplied by this for learning, before clipping."""

    def validate(self) -> None:
        """Refuse what can never work, as ``Config.validate`` does."""
        super().validate()
        whole, what = self.batch_size, "batch_size"
        if self.network.core == "none":
            whole, what = whole * self.unroll_length, "batch_size * unroll_length"
        divides = f"must divide {what} ({whole}): minibatches are of equal size"
        require(self, "num_minibatches", whole % self.num_minibatches == 0, divides)


C = TypeVar("C", bound=EpochConfig)


def fit_minibatches(config: C, num_learners: int) -> C:
    """Rounds ``envs_per_actor`` up, so that each learner's share divides into minibatches.

    ``batch_size`` grows with it: a turn keeps its number of unrolls.
    """
    unrolls = whole_unrolls(config)
    parts = config.num_minibatches * (config.num_microbatches or 1)
    sequences = unrolls * (config.unroll_length if config.network.core == "none" else 1)
    multiple = num_learners * (parts // math.gcd(parts, sequences))
    envs = -(-config.envs_per_actor // multiple) * multiple
    return dataclasses.replace(config, envs_per_actor=envs, batch_size=unrolls * envs)


class EpochState(NamedTuple):
    """What training changes, and the number of turns, from which the order of steps follows."""

    train: TrainState
    turns: jax.Array


class Prepared(NamedTuple):
    """What is computed once in a turn, with the parameters that it starts from.

    Attributes:
      samples: all that is learned from.
      logs: scalars.
      measured: what the agent measured of the observations, once and not in each epoch.
      before: a copy of the parameters, if something was measured.
    """

    samples: Samples
    logs: Logs
    measured: ArrayTree
    before: Params


class EpochLearner(Learner):
    """One update in each turn: several epochs of minibatches. A subclass says targets and loss.

    Each learner device shuffles its own share, so nothing moves between devices but gradients.

    Attributes:
      config: sizes and numbers of epochs.
      agent: whose parameters are learned.
    """

    def __init__(
        self,
        config: EpochConfig,
        agent: Agent,
        optimizer: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """Builds the programs of an update; nothing is computed yet.

        Raises:
          ConfigError: a learner device's share does not divide into minibatches.
        """
        self.config = config
        self.agent = agent
        self._optimizer = optimizer
        self._topology = topology
        self._single_steps = has_observed_state(agent)
        size = self._minibatch_size()
        frames = 1 if self._single_steps else config.unroll_length
        num_microbatches = config.num_microbatches or fewest(config, topology, size, frames)
        self._in_one_program = num_microbatches == 1 and fast_in_loops(agent, topology)
        self.synchronized = SynchronizedUpdate(
            self._loss, SAMPLE_AXES, optimizer, topology, num_microbatches
        )
        self.prepare_turn = jax.jit(self._prepare_turn)
        self._shuffle = partial(shuffle, topology, config.num_minibatches, config.seed)
        self._take = partial(take, topology)
        self.minibatches = jax.jit(self._minibatches)
        self._one_program = jax.jit(self._epoch, donate_argnums=0)
        self._stacked = jax.jit(_stacked)
        self._finish = jax.jit(self._finish_turn, donate_argnums=0)
        self._turn: tuple[Trajectory, ...] = ()

    @abc.abstractmethod
    def targets(self, trajectory: Trajectory, output: ArrayTree) -> tuple[ArrayTree, Logs]:
        """What the loss needs besides the trajectory, ``[T, B]`` each, and scalars to log.

        Runs once in a turn, on each learner device with that device's share of B. Sums over all
        devices are ``lax.psum(x, LEARNER_AXIS)``; logs must be the same on all of them.

        Args:
          trajectory: ``timestep`` ``[T+1, B, ...]``, ``actor`` ``[T, B, ...]`` and
            ``initial_state`` ``[B, ...]``.
          output: of the agent's ``unroll`` for it, ``[T+1, B, ...]``, before the first epoch.
        """

    @abc.abstractmethod
    def loss(self, params: Params, samples: Samples, progress: jax.Array) -> tuple[jax.Array, Logs]:
        """The loss to differentiate and scalars to log, all of them means over L x N.

        Runs on each learner device with that device's share of a minibatch; gradients and logs are
        averaged afterwards.

        Args:
          params: the agent's parameters.
          samples: the minibatch.
          progress: float32 scalar, the share of ``total_steps`` that is done, from 0 to 1, for
            weights that change in the course of training.
        """

    def is_enough(self, epoch: Logs) -> bool:
        """Whether to leave out the other epochs of the turn, from the logs of this one.

        ``epoch`` has arrays ``[num_minibatches]``, the same on all hosts, and so must be the
        answer.
        """
        return False

    def init(self, key: jax.Array) -> EpochState:
        """Fresh parameters and optimizer state on every learner device."""

        def init(key: jax.Array) -> EpochState:
            params = self.agent.init(key)
            return EpochState(TrainState(params, self._optimizer.init(params)), jnp.int32(0))

        return jax.jit(init, out_shardings=self._topology.replicated())(key)

    def params(self, state: EpochState) -> Params:
        """The parameters to act with."""
        return state.train.params

    def add(self, unrolls: Sequence[Unroll]) -> int:
        """Keep the turn's trajectories for ``update``: one update is due in every turn."""
        self._turn = tuple(
            assemble(unroll.shards, TRAJECTORY_AXES, self._topology) for unroll in unrolls
        )
        return 1

    def update(self, state: EpochState, progress: float) -> tuple[EpochState, Logs]:
        """All epochs on this turn's trajectories; ``state`` is donated."""
        train, turns = state
        samples, *once = self.prepare_turn(train.params, self._turn)
        # To start a program for each minibatch would take longer than a small minibatch itself.
        epoch = self._one_program if self._in_one_program else self._many_programs
        logs: list[Logs] = []
        for number in range(self.config.num_epochs):
            train, its_logs = epoch(train, samples, turns, np.int32(number), np.float32(progress))
            logs.append(its_logs)
            if self.is_enough(its_logs):
                break
        # For each other number of logs, the program would be compiled again.
        weights = np.float32(np.arange(self.config.num_epochs) < len(logs))
        logs += logs[-1:] * (self.config.num_epochs - len(logs))
        return self._finish(EpochState(train, turns), *once, logs, weights)

    def lower(self, state: Any, shard: Trajectory) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each of them runs, if no epoch is left out.

        Where an epoch is one program, the updates from all of its minibatches but the first are
        listed beside it: see ``Learner.lower``.
        """
        epochs, parts = self.config.num_epochs, self.config.num_minibatches
        whole = abstract(shard, TRAJECTORY_AXES, self._topology)
        unrolls = whole_unrolls(self.config)
        prepare = self.prepare_turn.lower(state.train.params, (whole,) * unrolls)
        samples = described(prepare.out_info.samples, SAMPLE_AXES, self._topology)
        order = (samples, state.turns, np.int32(0))
        minibatches = self.minibatches.lower(*order)
        minibatch = described(minibatches.out_info[0], SAMPLE_AXES, self._topology)
        update = self.synchronized.lower(state.train, (minibatch,))
        if self._in_one_program:
            epoch = self._one_program.lower(state.train, *order, np.float32(0))
            rest = parts - 1
        else:
            epoch, rest = minibatches, parts
        return [
            (prepare, 1),
            (epoch, epochs),
            *((program, epochs * rest * count) for program, count in update if rest),
        ]

    def _minibatch_size(self) -> int:
        """Sequences in one learner device's share of a minibatch."""
        config, learners = self.config, len(self._topology.learners)
        sequences = config.batch_size // learners
        sequences *= config.unroll_length if self._single_steps else 1
        parts = config.num_minibatches * (config.num_microbatches or 1)
        if sequences % parts:
            what = "steps" if self._single_steps else "trajectories, whose state is learned through"
            raise ConfigError(
                f"num_minibatches is {config.num_minibatches} with {config.num_microbatches or 1} "
                f"microbatch(es) in each, but each of the {learners} learner device(s) gets "
                f"{sequences} {what}: they must divide into equal parts. Set num_minibatches, on "
                "the command line with --num-minibatches."
            )
        return sequences // config.num_minibatches

    def _prepare_turn(self, params: Params, batch: Batch) -> Prepared:
        """Targets and measurements of the whole batch."""
        axes = (TRAJECTORY_AXES,) * len(batch)

        def local(params: Params, batch: Batch) -> tuple[Samples, Logs, ArrayTree]:
            trajectory = concatenate(batch)
            timestep = trajectory.timestep
            told = self.targets(trajectory, self._unroll(params, trajectory))
            targets, logs = checked_targets(self, told, timestep.first[1:].shape)
            measured = lax.pmean(measure(self.agent, params, timestep), LEARNER_AXIS)
            samples = Samples(
                jax.tree.map(lambda leaf: leaf[:-1], timestep),
                trajectory.actor,
                trajectory.initial_state,
                timestep.first[1:],
                targets,
            )
            if self._single_steps:
                samples = in_single_steps(samples, self.agent, params)
            return samples, logs, measured

        samples, logs, measured = jax.shard_map(
            local,
            mesh=self._topology.mesh,
            in_specs=(PartitionSpec(), jax.tree.map(spec_of, axes)),
            out_specs=(jax.tree.map(spec_of, SAMPLE_AXES), PartitionSpec(), PartitionSpec()),
            check_vma=False,
        )(params, batch)
        # A copy, because the first epoch donates the parameters.
        before = jax.tree.map(jnp.copy, params) if jax.tree.leaves(measured) else ()
        return Prepared(samples, logs, measured, before)

    def _unroll(self, params: Params, trajectory: Trajectory) -> ArrayTree:
        """Outputs of the agent, ``[T+1, B, ...]``, in parts that fit the cache."""
        frames, count = trajectory.timestep.first.shape
        num_parts = fewest(self.config, self._topology, count, frames)

        def unroll(part: Trajectory) -> ArrayTree:
            return self.agent.unroll(params, part.timestep, part.initial_state)[0]

        if num_parts == 1:
            return unroll(trajectory)

        def joined(leaf: jax.Array) -> jax.Array:
            leaf = jnp.moveaxis(leaf, 0, 1)
            return leaf.reshape(frames, count, *leaf.shape[3:])

        def of_part(index: jax.Array) -> ArrayTree:
            return unroll(part_of(trajectory, TRAJECTORY_AXES, index, num_parts))

        return jax.tree.map(joined, lax.map(of_part, jnp.arange(num_parts)))

    def _epoch(
        self,
        train: TrainState,
        samples: Samples,
        turns: jax.Array,
        epoch: jax.Array,
        progress: jax.Array,
    ) -> tuple[TrainState, Logs]:
        """All updates of one epoch, and their logs, ``[num_minibatches]`` each."""

        def step(train: TrainState, indices: jax.Array) -> tuple[TrainState, Logs]:
            minibatch = self._take(samples, indices)
            train, logs, _ = self.synchronized.whole(train, (minibatch,), (), progress)
            return train, logs

        return lax.scan(step, train, self._shuffle(samples, turns, epoch))

    def _many_programs(
        self,
        train: TrainState,
        samples: Samples,
        turns: jax.Array,
        epoch: np.int32,
        progress: np.float32,
    ) -> tuple[TrainState, Logs]:
        """What ``_epoch`` does, in programs between which an actor's step can run."""
        logs = []
        for minibatch in self.minibatches(samples, turns, epoch):
            train, its_logs, _ = self.synchronized(train, (minibatch,), progress=float(progress))
            logs.append(its_logs)
        return train, self._stacked(logs)

    def _minibatches(self, samples: Samples, turns: jax.Array, epoch: jax.Array) -> list[Samples]:
        """Those of one epoch, in which each sequence is once."""
        return [self._take(samples, part) for part in self._shuffle(samples, turns, epoch)]

    def _loss(
        self, params: Params, _: ArrayTree, progress: jax.Array, parts: Batch
    ) -> tuple[jax.Array, LossOutput]:
        """``loss``, in the form that ``SynchronizedUpdate`` takes."""
        (samples,) = parts
        total, logs = checked_loss(self, self.loss(params, samples, progress))
        return total, LossOutput({"loss": total, **logs})

    def _finish_turn(
        self,
        state: EpochState,
        logs_once: Logs,
        measured: ArrayTree,
        before: Params,
        logs: Sequence[Logs],
        weights: np.ndarray[Any, Any],
    ) -> tuple[EpochState, Logs]:
        """The state after the turn, and the means of the logs of its epochs, weighted so."""
        train, turns = state
        if jax.tree.leaves(measured):
            # Only now: in all epochs, observations are normalized as they were at the start.
            params = self.agent.absorb(train.params, before, measured)  # type: ignore[attr-defined]
            train = train._replace(params=params)
        means = jax.tree.map(
            lambda log: jnp.average(jnp.mean(log, axis=1), weights=weights), _stacked(logs)
        )
        return EpochState(train, turns + 1), joined_logs(self, means, logs_once)


def has_observed_state(agent: Agent) -> bool:
    """Whether single steps can be learned from: the state holds nothing but observations, if any.

    An agent whose state is not empty says so by an attribute ``has_observed_state``.
    """
    state = jax.eval_shape(lambda: agent.initial_state(1))
    return not jax.tree.leaves(state) or getattr(agent, "has_observed_state", False)


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of ``values`` where ``mask``, over all learner devices; in ``targets``."""
    total, count = lax.psum((jnp.sum(jnp.where(mask, values, 0)), jnp.sum(mask)), LEARNER_AXIS)
    return total / jnp.maximum(count, 1)


def _stacked(logs: Sequence[Logs]) -> Logs:
    return jax.tree.map(lambda *values: jnp.stack(values), *logs)
