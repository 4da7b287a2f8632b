"""R2D2's learner: recurrent replay distributed DQN (Kapturowski et al. 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sebulba import losses
from sebulba.config import CheckpointConfig, Config, NetworkConfig, OptimizerConfig, refuse_policies
from sebulba.devices.topology import Topology
from sebulba.learners.base import Learner, Logs, Upkeep
from sebulba.learners.replay.host import HostReplay, ReplayConfig
from sebulba.learners.replay.shard import Sample
from sebulba.learners.replay.storage import Sequences, block_shapes
from sebulba.learners.sharding import abstract, assemble, local_data
from sebulba.learners.update import Batch, LossOutput, SynchronizedUpdate, TrainState, measure
from sebulba.types import Agent, EnvSpec, Histogram, Params, State, Timestep, Trajectory, Unroll
from sebulba.validation import Count, Limit, NotNegativeInt, Positive, Share, require


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayCheckpointConfig(CheckpointConfig):
    """When checkpoints are written, how many are kept, and whether the replay is saved too."""

    save_replay: bool = False
    """Also save the newest replay, while training goes on; --resume then reads it. Otherwise a
    resumed run starts with an empty replay."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class R2D2Config(Config):
    """R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019).

    Defaults are the paper's (section 2.3 and table 2) but for what ``docs/algorithms.md`` says. The
    most important: the paper learns from 80 steps after a burn-in of 40 (here: sequence_length
    120), and these defaults from the last 40 of 80 steps. The paper's Adam epsilon of 1e-3 and
    clipping norm of 40 are taken as for a loss summed over time, as in acme and SEED RL; here the
    loss is a mean over T x B, so both are divided by sequence_length - burn_in = 40. Sequences are
    made of whole consecutive unrolls, so they overlap by sequence_length - unroll_length.
    """

    unroll_length: Count = 40
    """T: steps of one trajectory, and between the starts of overlapping sequences."""
    sequence_length: Count = 80
    """Steps of a replayed sequence: a multiple of unroll_length."""
    burn_in: NotNegativeInt = 40
    """First steps of a sequence, which only warm up the recurrent state."""
    batch_size: Count = 64
    """Sequences that one update learns from, on each host."""
    discount: Share = 0.997
    """gamma."""
    n_step: Count = 5
    """Rewards in a return before it bootstraps."""
    target_update_period: Count = 2500
    """Updates between copies of the parameters to the target network."""
    reward_clip: Limit = None
    """Rewards are clipped to +- this for learning; the paper rescales values instead."""
    epsilon_base: Share = 0.4
    """Share of random actions in the environment that explores most. Of all N on all hosts,
    environment i has base^(1 + alpha i / (N - 1)) (Horgan et al. 2018, "Ape-X", section 4.1)."""
    epsilon_alpha: Positive = 7.0
    """alpha in the formula of epsilon_base."""
    evaluation_epsilon: Share = 0.001
    """Share of random actions in evaluation."""
    replay: ReplayConfig = ReplayConfig()
    checkpoint: ReplayCheckpointConfig = ReplayCheckpointConfig()
    network: NetworkConfig = NetworkConfig(core="lstm", core_size=512)
    optimizer: OptimizerConfig = OptimizerConfig(
        name="adam",
        learning_rate=1e-4,
        epsilon=1e-3 / 40,
        decay_to_zero=False,
        max_gradient_norm=40 / 40,
    )

    def validate(self) -> None:
        """Refuse what can never work, as ``Config.validate`` does."""
        super().validate()
        length, unroll = self.sequence_length, self.unroll_length
        multiple = f"must be a multiple of unroll_length ({unroll}): it is made of whole unrolls"
        require(self, "sequence_length", length % unroll == 0, multiple)
        # The last step of an unroll has no TD error at collection, and a first priority needs at
        # least one; hence also at least two steps after the burn-in.
        require(self, "unroll_length", unroll > 1, "must be above 1 for R2D2")
        longest = f"must be from 0 to sequence_length - 2 ({length - 2})"
        require(self, "burn_in", self.burn_in <= length - 2, longest)
        capacity = self.replay.capacity
        most = f"must be at most replay.capacity ({capacity})"
        require(self, "replay.min_size", self.replay.min_size <= capacity, most)
        refuse_policies(self, "R2D2")


class R2D2State(NamedTuple):
    """Online parameters with their optimizer, target parameters, and the number of updates."""

    train: TrainState
    target: Params
    updates: jax.Array


class ReplayBatch(NamedTuple):
    """What one update learns from: sequences ``[B, ...]`` and their importance weights ``[B]``."""

    sequences: Sequences
    weights: jax.Array


_BATCH_AXES: Any = ReplayBatch(Sequences(0, 0, 0), 0)  # type: ignore[arg-type]


class R2D2Learner(Learner):
    """Inserts all unrolls into a replay, and learns from samples of it at a fixed ratio.

    The agent's ``unroll`` must return rescaled Q values ``[T, B, A]``, and its ``act`` must give
    them as extras ``[B, A]``.
    """

    def __init__(
        self,
        config: R2D2Config,
        agent: Agent,
        spec: EnvSpec,
        optimizer: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """The learner devices must divide the batch; ``prepare`` allocates the replay."""
        self._config = config
        self._agent = agent
        self._optimizer = optimizer
        self._topology = topology
        self._lanes = config.num_actors(len(topology.inference))
        num_envs = config.envs_per_actor // len(topology.learners)
        self.replay = HostReplay(
            config.replay,
            block_shapes(agent, spec, num_envs, config.unroll_length),
            lanes=self._lanes,
            span=config.sequence_length // config.unroll_length,
            batch_size=config.batch_size,
            seed=config.seed,
            devices=topology.learners,
        )
        self.synchronized = SynchronizedUpdate(
            self._loss, _BATCH_AXES, optimizer, topology, config.num_microbatches or 1, agent
        )
        self._update_target = jax.jit(self._next_target, donate_argnums=0)
        self._errors = jax.jit(self._errors_at_collection)
        self._in_flight: tuple[list[Sample], list[jax.Array]] | None = None

    def init(self, key: jax.Array) -> R2D2State:
        """Fresh parameters, twice, and optimizer state on every learner device."""

        def init(key: jax.Array) -> R2D2State:
            params = self._agent.init(key)
            train = TrainState(params, self._optimizer.init(params))
            # A copy, because online and target parameters are donated separately.
            return R2D2State(train, jax.tree.map(jnp.copy, params), jnp.int32(0))

        return jax.jit(init, out_shardings=self._topology.replicated())(key)

    def params(self, state: R2D2State) -> Params:
        """The online network's parameters."""
        return state.train.params

    def add(self, unrolls: Sequence[Unroll]) -> int:
        """Insert the unrolls; the updates due follow from the number of sequences inserted."""
        return self.replay.insert(unrolls, self._errors, self._priority)

    def update(self, state: R2D2State, progress: float) -> tuple[R2D2State, Logs]:
        """One update on a batch from the replay; ``state`` is donated."""
        samples = self.replay.sample()
        batch = self._batch(samples)
        train, logs, priorities = self.synchronized(state.train, (batch,), state.target, progress)
        target, updates = self._update_target(state.target, train.params, state.updates)
        # While the devices work, store the priorities of the update before this one and draw the
        # next batch, which therefore does not know this update's priorities yet.
        self._write_back()
        self._in_flight = (samples, priorities)
        self.replay.trained += self._config.batch_size
        self.replay.draw_ahead()
        return R2D2State(train, target, updates), logs

    def metrics(self) -> dict[str, float]:
        """Size and use of this host's replay, and quantiles of its priorities."""
        return self.replay.metrics()

    def histograms(self) -> dict[str, Histogram]:
        """The priorities in this host's replay."""
        return self.replay.histograms()

    def prepare(self) -> str:
        """Allocate the replay; says its size, and warns if it takes all steps to fill it."""
        line = self.replay.allocate()
        total = self._config.total_steps
        start = steps_before_learning(self._config, self._lanes) * self._topology.num_hosts
        if total > start:
            return line
        return (
            f"{line}\ntotal_steps is {total:,}, but learning starts after about "
            f"{start:,}, once the replay holds min_size sequences: little will be learned. "
            "Raise total_steps, on the command line with --total-steps, or lower replay.min_size, "
            "with --replay.min-size."
        )

    def lower(self, state: R2D2State, shard: Trajectory) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each runs, without the target network's copy."""
        config = self._config
        count = config.batch_size // len(self._topology.learners)
        batch = abstract(
            _replayed(shard, count, config.sequence_length), _BATCH_AXES, self._topology
        )
        return self.synchronized.lower(state.train, (batch,), state.target)

    def upkeep(self) -> Upkeep:
        """The work of the replay, and on a device its memory."""
        return self.replay.upkeep()

    def save_replay(self, path: Path) -> None:
        """Start writing the replay, if ``config.checkpoint.save_replay``."""
        if self._config.checkpoint.save_replay:
            # So that the snapshot holds the priorities of the last update too.
            self._write_back()
            self.replay.save(path)

    def load_replay(self, path: Path) -> str | None:
        """Read the replay, if ``config.checkpoint.save_replay``."""
        return self.replay.load(path) if self._config.checkpoint.save_replay else None

    def close(self) -> None:
        """Wait for the replay to be written."""
        self.replay.finish()

    def _loss(
        self, params: Params, target_params: Params, _: jax.Array, parts: Batch
    ) -> tuple[jax.Array, LossOutput]:
        """Half the squared TD errors after the burn-in, weighted; the mean over T x B."""
        config, (batch,) = self._config, parts
        timestep, actions = _time_major(batch.sequences)
        state = batch.sequences.initial_state
        q_online = self._q_values(params, timestep, state)
        q_target = self._q_values(target_params, timestep, state)
        # + 1, since the consequences of action t are in timestep t + 1.
        learned = jax.tree.map(lambda leaf: leaf[config.burn_in + 1 :], timestep)
        first = learned.first
        output = losses.n_step_double_q(
            q_online,
            q_target,
            actions[config.burn_in :],
            losses.clip_rewards(learned.reward, config.reward_clip),
            learned.discount * config.discount,
            first,
            n=config.n_step,
        )
        priorities = losses.sequence_priorities(output.td_errors, first, config.replay.priority_eta)
        total = losses.mean_loss(output.loss * batch.weights)
        logs = {
            "loss": total,
            "q_mean": jnp.mean(q_online),
            "td_error": losses.mean_loss(jnp.abs(output.td_errors)),
            "importance_weight_mean": jnp.mean(batch.weights),
        }
        return total, LossOutput(logs, priorities, measure(self._agent, params, timestep))

    def _q_values(self, params: Params, timestep: Timestep, state: State) -> jax.Array:
        """Q values ``[S+1-burn_in, B, A]`` of the timesteps after the burn-in."""
        burn_in = self._config.burn_in
        # Old parameters computed the stored state; the burn-in brings it up to date (section 3).
        if burn_in:
            warm_up = jax.tree.map(lambda leaf: leaf[:burn_in], timestep)
            _, state = self._agent.unroll(params, warm_up, state)
            state = lax.stop_gradient(state)
        rest = jax.tree.map(lambda leaf: leaf[burn_in:], timestep)
        return self._agent.unroll(params, rest, state)[0]

    def _errors_at_collection(self, trajectory: Trajectory) -> jax.Array:
        """Absolute TD errors ``[T, B]`` from the actor's own Q values; -1 for steps without one.

        These are auto-resets, and the last step: its bootstrap value comes with the next unroll.
        """
        # [T, B, A], of timesteps 0 to T - 1: T - 1 steps and their bootstrap. Actors have no target
        # network, so their one network takes both roles.
        q_values = trajectory.actor.extras
        timestep = jax.tree.map(lambda leaf: leaf[1:-1], trajectory.timestep)
        output = losses.n_step_double_q(
            q_values,
            q_values,
            trajectory.actor.action[:-1],
            losses.clip_rewards(timestep.reward, self._config.reward_clip),
            timestep.discount * self._config.discount,
            timestep.first,
            n=self._config.n_step,
        )
        errors = jnp.where(timestep.first, -1, jnp.abs(output.td_errors))
        return jnp.concatenate([errors, jnp.full_like(errors[:1], -1)])

    def _priority(self, errors: np.ndarray) -> np.ndarray:
        """``losses.sequence_priorities`` after the burn-in, in NumPy, with -1 for masked steps."""
        errors = errors[self._config.burn_in :]
        there = errors >= 0
        valid = np.maximum(1, np.sum(there, axis=0))
        errors = np.where(there, errors, 0)
        eta = self._config.replay.priority_eta
        return eta * errors.max(axis=0) + (1 - eta) * errors.sum(axis=0) / valid

    def _batch(self, samples: Sequence[Sample]) -> ReplayBatch:
        """The global batch, its weights normalized by the largest one on all hosts."""
        parts = []
        for sample, size in zip(samples, self.replay.sizes(), strict=True):
            weights = losses.importance_weights(
                sample.probabilities, size, self._config.replay.importance_exponent
            )
            (device,) = sample.sequences.action.devices()
            placed = jax.device_put(np.float32(weights), device)
            parts.append(ReplayBatch(sample.sequences, placed))
        batch: ReplayBatch = assemble(parts, _BATCH_AXES, self._topology)
        return batch._replace(weights=_normalized(batch.weights))

    def _write_back(self) -> None:
        """Store the priorities that the last update computed; waits for its result."""
        if self._in_flight is None:
            return
        samples, pieces = self._in_flight
        self._in_flight = None
        # Microbatches are consecutive parts of each sample, so joining them restores its order.
        priorities = [
            np.concatenate(jax.device_get([local_data(piece, device) for piece in pieces]))
            for device in self._topology.learners
        ]
        self.replay.update(samples, priorities)

    def _next_target(
        self, target: Params, params: Params, updates: jax.Array
    ) -> tuple[Params, jax.Array]:
        """A copy of the online network every ``target_update_period`` updates."""
        updates = updates + 1
        # The count is part of the state, so a resumed run copies after the same updates.
        due = updates % self._config.target_update_period == 0
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), params, target), updates


@jax.jit
def _normalized(weights: jax.Array) -> jax.Array:
    """Divided by the largest of the global batch, which all hosts compute together."""
    return losses.normalize_importance_weights(weights, jnp.max(weights))


def steps_before_learning(config: R2D2Config, lanes: int) -> int:
    """Agent steps of one host, auto-resets included, until ``replay.min_size`` sequences are there.

    The first ``span`` unrolls of an actor complete no sequence; each later unroll completes one for
    each of its environments.
    """
    span = config.sequence_length // config.unroll_length
    return config.unroll_length * (span * lanes * config.envs_per_actor + config.replay.min_size)


def _replayed(shard: Trajectory, count: int, length: int) -> ReplayBatch:
    """One learner device's share of a batch, as ``jax.ShapeDtypeStruct``."""

    def steps(leaf: Any, length: int) -> Any:
        return jax.ShapeDtypeStruct((count, length, *leaf.shape[2:]), leaf.dtype)

    def start(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype)

    timestep = jax.tree.map(lambda leaf: steps(leaf, length + 1), shard.timestep)
    state = jax.tree.map(start, shard.initial_state)
    sequences = Sequences(timestep, steps(shard.actor.action, length), state)
    weights: Any = jax.ShapeDtypeStruct((count,), np.float32)
    return ReplayBatch(sequences, weights)


def _time_major(sequences: Sequences) -> tuple[Timestep, jax.Array]:
    timestep: Timestep = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), sequences.timestep)
    return timestep, sequences.action.swapaxes(0, 1)
