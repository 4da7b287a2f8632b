"""R2D2's learner: recurrent replay distributed DQN (Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sebulba import hosts, losses
from sebulba.config import R2D2Config
from sebulba.learners.base import (
    Batch,
    Delivery,
    Learner,
    Logs,
    LossOutput,
    SynchronisedUpdate,
    TrainState,
    assemble,
    clip_rewards,
)
from sebulba.learners.host_replay import HostReplay
from sebulba.learners.pieces import num_pieces
from sebulba.learners.replay import Sample
from sebulba.learners.storage import Sequences
from sebulba.topology import Topology
from sebulba.types import Agent, EnvSpec, Params, State, Timestep, Trajectory


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


class R2D2Learner(Learner):
    """Inserts every unroll into the replay, and updates as often as the replay ratio says.

    The agent's ``unroll`` must return Q values ``[T, B, A]`` on the rescaled axis, and its
    ``act`` the Q values ``[B, A]`` as extras.
    """

    def __init__(
        self,
        config: R2D2Config,
        agent: Agent,
        spec: EnvSpec,
        optimiser: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """Allocates the replay.

        Raises:
          ConfigError: the batch does not divide over the learner devices, or memory is short.
        """
        self._config = config
        self._agent = agent
        self._optimiser = optimiser
        self._topology = topology
        self.replay = HostReplay(config, agent, spec, topology)
        self.synchronised = SynchronisedUpdate(
            Batch(_BATCH_AXES, self.loss), optimiser, topology, num_pieces(config, topology)
        )
        self._update_target = jax.jit(self._next_target, donate_argnums=0)
        self._errors = jax.jit(self._errors_at_collection)
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
        return self.replay.insert(deliveries, self._errors, self._priority)

    def update(self, state: R2D2State) -> tuple[R2D2State, Logs]:
        """One update on a batch from the replay; ``state`` is donated."""
        samples = self._prefetched or self.replay.sample()
        batch = self._batch(samples)
        train, logs, priorities = self.synchronised(state.train, batch, state.target)
        target, updates = self._update_target(state.target, train.params, state.updates)
        # While the devices work: the priorities of the update before, and the next batch.
        self._write_back()
        self._in_flight = (samples, priorities)
        self.replay.trained += self._config.sequences_per_update
        self._prefetched = self.replay.sample()
        return R2D2State(train, target, updates), logs

    def metrics(self) -> dict[str, float]:
        """Size and use of this host's replay, and quantiles of its priorities."""
        return self.replay.metrics()

    def describe(self) -> str:
        """What the replay takes, and whether there are enough steps to learn from it."""
        total, start = self._config.total_steps, self.replay.steps_to_fill
        if total > start:
            return self.replay.memory
        return (
            f"{self.replay.memory}\ntotal_steps is {total:,}, but learning starts after about "
            f"{start:,}, once the replay holds min_size sequences: hardly anything will be learnt. "
            "Raise --total-steps or lower --replay.min-size."
        )

    def save_memory(self, path: Path) -> None:
        """Write the replay, where ``config.checkpoint.replay`` says so."""
        if self._config.checkpoint.replay:
            self._write_back()
            self.replay.save(path)

    def load_memory(self, path: Path) -> str | None:
        """Read the replay, where ``config.checkpoint.replay`` says so."""
        return self.replay.load(path) if self._config.checkpoint.replay else None

    def close(self) -> None:
        """Wait for the replay to be written."""
        self.replay.finish()

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
        -1, as have the steps that are not part of the problem.
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
        errors = jnp.where(timestep.first, -1, jnp.abs(output.td_errors))
        return jnp.concatenate([errors, jnp.full_like(errors[:1], -1)])

    def _priority(self, errors: np.ndarray) -> np.ndarray:
        """``losses.sequence_priorities`` of the steps after the burn-in, on the host."""
        errors = errors[self._config.burn_in :]
        there = errors >= 0
        valid = np.maximum(1, np.sum(there, axis=0))
        errors = np.where(there, errors, 0)
        eta = self._config.replay.priority_eta
        priorities: np.ndarray = eta * errors.max(axis=0) + (1 - eta) * errors.sum(axis=0) / valid
        return priorities

    def _batch(self, samples: Sequence[Sample]) -> ReplayBatch:
        """The global batch, with weights normalised by the largest of all hosts."""
        parts = []
        for sample, size in zip(samples, self.replay.sizes(), strict=True):
            weights = losses.importance_weights(
                sample.probabilities, size, self._config.replay.importance_exponent
            )
            (device,) = sample.sequences.action.devices()
            placed = jax.device_put(np.float32(weights), device)
            parts.append(ReplayBatch(sample.sequences, placed))
        batch: ReplayBatch = assemble(parts, _BATCH_AXES, self._topology)
        largest = hosts.combine("max", _largest(batch.weights), self._topology)
        return batch._replace(weights=_normalised(batch.weights, largest))

    def _write_back(self) -> None:
        """Priorities of the update under way go to the replay."""
        if self._in_flight is None:
            return
        samples, pieces = self._in_flight
        self._in_flight = None
        priorities = [
            np.concatenate(jax.device_get([local_data(piece, device) for piece in pieces]))
            for device in self._topology.learners
        ]
        self.replay.update(samples, priorities)

    def _next_target(
        self, target: Params, params: Params, updates: jax.Array
    ) -> tuple[Params, jax.Array]:
        """A copy of the online network every ``target_update`` updates."""
        updates = updates + 1
        due = updates % self._config.target_update == 0
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), params, target), updates


def local_data(array: jax.Array, device: jax.Device) -> jax.Array:
    """The shard of a global array that is on ``device``."""
    data: list[jax.Array] = [s.data for s in array.addressable_shards if s.device == device]
    return data[0]


_largest = jax.jit(jnp.max)
_normalised = jax.jit(losses.normalize_importance_weights)


def _time_major(sequences: Sequences) -> tuple[Timestep, jax.Array]:
    timestep: Timestep = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), sequences.timestep)
    return timestep, sequences.action.swapaxes(0, 1)
