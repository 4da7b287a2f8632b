"""R2D2's learner: recurrent replay distributed DQN (Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sebulba import losses
from sebulba.config import ConfigError, R2D2Config
from sebulba.learners.base import (
    Batch,
    Delivery,
    Logs,
    LossOutput,
    SynchronisedUpdate,
    TrainState,
    assemble,
    clip_rewards,
)
from sebulba.learners.memory import check_memory
from sebulba.learners.replay import ReplayShard, Sample
from sebulba.learners.storage import (
    Block,
    DeviceStorage,
    Geometry,
    HostStorage,
    Sequences,
    block_of,
    nbytes,
)
from sebulba.topology import Topology
from sebulba.types import Agent, Params, State, Timestep, Trajectory


class R2D2State(NamedTuple):
    """Online network and optimiser, target network, and the number of updates."""

    train: TrainState
    target: Params
    updates: jax.Array


class ReplayBatch(NamedTuple):
    """What one update learns from: sequences ``[B, ...]`` and their importance weights ``[B]``."""

    sequences: Sequences
    weights: jax.Array


_BATCH_AXES: Any = ReplayBatch(Sequences(0, 0, 0), 0)  # type: ignore[arg-type]


class R2D2Learner:
    """Inserts every unroll into the replay, and updates as often as the replay ratio says.

    The agent's ``unroll`` must return Q values ``[T, B, A]`` on the rescaled axis, and its
    ``act`` the Q values ``[B, A]`` as extras.
    """

    def __init__(
        self,
        config: R2D2Config,
        agent: Agent,
        optimiser: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """The replay is allocated when the first unroll comes.

        Raises:
          ConfigError: the batch does not divide over the learner devices.
        """
        self._config = config
        self._agent = agent
        self._optimiser = optimiser
        self._topology = topology
        self._num_lanes = len(topology.inference) * config.actors_per_device
        self._per_device = _divide(config, topology)
        self._synchronised = SynchronisedUpdate(
            Batch(_BATCH_AXES, self.loss),
            optimiser,
            topology,
            config.gradient_accumulation,
        )
        self._update_target = jax.jit(self._next_target, donate_argnums=0)
        self._errors = jax.jit(self._errors_at_collection)
        self._shards: list[ReplayShard] = []
        self._inserted = 0
        self._updates_due = 0.0
        self._updates_done = 0
        self._sampled = 0
        self._prefetched: list[Sample] | None = None
        self._in_flight: tuple[list[Sample], list[jax.Array]] | None = None

    def init(self, key: jax.Array) -> R2D2State:
        """Fresh parameters, twice, and optimiser state on every learner device."""

        def init(key: jax.Array) -> R2D2State:
            params = self._agent.init(key)
            train = TrainState(params, self._optimiser.init(params))
            return R2D2State(train, jax.tree.map(jnp.copy, params), jnp.int32(0))

        state: R2D2State = jax.jit(init, out_shardings=self._topology.replicated())(key)
        return state

    def params(self, state: R2D2State) -> Params:
        """The online network's parameters."""
        return state.train.params

    def add(self, deliveries: Sequence[Delivery]) -> int:
        """Insert; the updates due follow from the sequences inserted, by counting."""
        completed = 0
        for delivery in deliveries:
            if not self._shards:
                self._allocate(delivery.parts)
            for shard, part in zip(self._shards, delivery.parts, strict=True):
                completed += shard.insert(delivery.lane, part, self._errors(part), self._priority)
        config = self._config
        self._inserted += completed
        if self._inserted < config.replay.min_size:
            return 0
        self._updates_due += completed * config.replay.ratio / config.sequences_per_update
        due = int(self._updates_due)
        self._updates_due -= due
        return due

    def update(self, state: R2D2State) -> tuple[R2D2State, Logs]:
        """One update on a batch from the replay; ``state`` is donated."""
        samples = self._prefetched or self._sample()
        batch = assemble(
            [
                self._batch(sample, shard)
                for sample, shard in zip(samples, self._shards, strict=True)
            ],
            _BATCH_AXES,
            self._topology,
        )
        batch = batch._replace(weights=_normalised(batch.weights))
        train, logs, priorities = self._synchronised(state.train, batch, state.target)
        target, updates = self._update_target(state.target, train.params, state.updates)
        # While the devices work: the priorities of the update before, and the next batch.
        self._write_back()
        self._in_flight = (samples, priorities)
        self._prefetched = self._sample()
        self._updates_done += 1
        return R2D2State(train, target, updates), logs

    def metrics(self) -> dict[str, float]:
        """Size and use of this host's replay, and quantiles of its priorities."""
        size = sum(shard.size for shard in self._shards)
        row = {
            "replay_size": size,
            "replay_ratio": self._updates_done
            * self._config.sequences_per_update
            / max(1, self._inserted),
        }
        powers = [shard.priorities.powers[shard.priorities.powers > 0] for shard in self._shards]
        if size:
            exponent = max(self._config.replay.priority_exponent, 1e-9)
            for quantile in (0.1, 0.5, 0.9):
                value = np.quantile(np.concatenate(powers), quantile) ** (1 / exponent)
                row[f"priority_quantile_{round(100 * quantile)}"] = float(value)
        return row

    def loss(
        self, params: Params, target_params: Params, batch: ReplayBatch
    ) -> tuple[jax.Array, LossOutput]:
        """Weighted squared TD errors of the steps after the burn-in, as a mean over T x B."""
        config = self._config
        timestep, actions = _time_major(batch.sequences)
        state = batch.sequences.initial_state
        q_online = self._q_values(params, timestep, state)
        q_target = self._q_values(target_params, timestep, state)
        learned = jax.tree.map(lambda leaf: leaf[config.burn_in + 1 :], timestep)
        first = learned.first
        output = losses.n_step_double_q(
            q_online,
            q_target,
            actions[config.burn_in :],
            clip_rewards(learned.reward, config.reward_clip),
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
        return total, LossOutput(logs, priorities)

    def _q_values(self, params: Params, timestep: Timestep, state: State) -> jax.Array:
        """Q values ``[S+1-burn_in, B, A]`` of the steps after the burn-in."""
        burn_in = self._config.burn_in
        if burn_in:
            warm_up = jax.tree.map(lambda leaf: leaf[:burn_in], timestep)
            _, state = self._agent.unroll(params, warm_up, state)
            state = lax.stop_gradient(state)
        rest = jax.tree.map(lambda leaf: leaf[burn_in:], timestep)
        q_values: jax.Array = self._agent.unroll(params, rest, state)[0]
        return q_values

    def _errors_at_collection(self, trajectory: Trajectory) -> jax.Array:
        """Absolute TD errors ``[T, B]`` from the actor's own Q values.

        The Q values of the last timestep belong to the next unroll, so the last step has none:
        NaN, as have the steps that are not part of the problem.
        """
        q_values = trajectory.actor.extras
        timestep = jax.tree.map(lambda leaf: leaf[1:-1], trajectory.timestep)
        output = losses.n_step_double_q(
            q_values,
            q_values,
            trajectory.actor.action[:-1],
            clip_rewards(timestep.reward, self._config.reward_clip),
            timestep.discount * self._config.discount,
            timestep.first,
            n=self._config.n_step,
        )
        errors = jnp.where(timestep.first, jnp.nan, jnp.abs(output.td_errors))
        return jnp.concatenate([errors, jnp.full_like(q_values[:1, :, 0], jnp.nan)])

    def _priority(self, errors: np.ndarray) -> np.ndarray:
        """``losses.sequence_priorities`` of the steps after the burn-in, on the host."""
        errors = errors[self._config.burn_in :]
        valid = np.maximum(1, np.sum(~np.isnan(errors), axis=0))
        errors = np.nan_to_num(errors)
        eta = self._config.replay.priority_eta
        priorities: np.ndarray = eta * errors.max(axis=0) + (1 - eta) * errors.sum(axis=0) / valid
        return priorities

    def _batch(self, sample: Sample, shard: ReplayShard) -> ReplayBatch:
        """A shard's part of the batch; the devices normalise its weights."""
        weights = losses.importance_weights(
            sample.probabilities, shard.size, self._config.replay.importance_exponent
        )
        (device,) = sample.sequences.action.devices()
        return ReplayBatch(sample.sequences, jax.device_put(np.float32(weights), device))

    def _sample(self) -> list[Sample]:
        """One sample of each shard. Random numbers follow from the number of the update."""
        samples = []
        for number, shard in enumerate(self._shards):
            where = jax.process_index() * len(self._shards) + number
            random = np.random.default_rng([self._config.seed, where, self._sampled])
            samples.append(shard.sample(self._per_device, random))
        self._sampled += 1
        return samples

    def _write_back(self) -> None:
        """Priorities of the update under way go to the shards."""
        if self._in_flight is None:
            return
        samples, pieces = self._in_flight
        devices = self._topology.learners
        for device, shard, sample in zip(devices, self._shards, samples, strict=True):
            priorities = [local_data(piece, device) for piece in pieces]
            shard.update(sample, np.concatenate(jax.device_get(priorities)))

    def _allocate(self, parts: Sequence[Trajectory]) -> None:
        config = self._config
        num_envs = parts[0].timestep.first.shape[1]
        span = config.sequence_length // config.unroll_length
        per_shard = self._num_lanes * num_envs
        slots = -(-config.replay.capacity // (per_shard * len(parts))) + span
        geometry = Geometry(self._num_lanes, slots, num_envs, span)
        shapes: Block = jax.eval_shape(block_of, parts[0])
        needed = nbytes(shapes, geometry) * len(parts)
        check_memory(needed, config.replay.placement, self._topology.learners)
        storage = HostStorage if config.replay.placement == "host" else DeviceStorage
        for device in self._topology.learners:
            self._shards.append(
                ReplayShard(
                    storage(shapes, geometry, device), geometry, config.replay.priority_exponent
                )
            )

    def _next_target(
        self, target: Params, params: Params, updates: jax.Array
    ) -> tuple[Params, jax.Array]:
        """A copy of the online network every ``target_update`` updates."""
        updates = updates + 1
        due = updates % self._config.target_update == 0
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), params, target), updates


def local_data(array: jax.Array, device: jax.Device) -> jax.Array:
    """The shard of a global array that is on ``device``."""
    (data,) = [shard.data for shard in array.addressable_shards if shard.device == device]
    return data


@jax.jit
def _normalised(weights: jax.Array) -> jax.Array:
    normalised: jax.Array = losses.normalize_importance_weights(weights, jnp.max(weights))
    return normalised


def _time_major(sequences: Sequences) -> tuple[Timestep, jax.Array]:
    timestep: Timestep = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), sequences.timestep)
    return timestep, sequences.action.swapaxes(0, 1)


def _divide(config: R2D2Config, topology: Topology) -> int:
    """Sequences of one update for each learner device."""
    learners = len(topology.learners)
    per_device, rest = divmod(config.sequences_per_update, learners)
    if rest or per_device % config.gradient_accumulation:
        raise ConfigError(
            f"sequences_per_update {config.sequences_per_update} does not divide over {learners} "
            f"learner devices in {config.gradient_accumulation} piece(s): make it a multiple of "
            f"{learners * config.gradient_accumulation}."
        )
    return per_device
