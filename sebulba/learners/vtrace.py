"""IMPALA's learner: V-trace actor-critic (Espeholt et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from sebulba import losses
from sebulba.config import VTraceConfig
from sebulba.distributions import Distribution
from sebulba.learners.base import (
    TRAJECTORY_AXES,
    Batch,
    Delivery,
    Learner,
    Logs,
    LossOutput,
    SynchronisedUpdate,
    TrainState,
    assemble,
    clip_rewards,
    concatenate,
)
from sebulba.learners.pieces import num_pieces
from sebulba.topology import Topology
from sebulba.types import Agent, ArrayTree, Params, Trajectory


class VTraceLearner(Learner):
    """One update for each turn of trajectories.

    The agent's ``unroll`` must return an output with ``policy`` and ``value``, and its ``act``
    extras with ``log_prob`` and ``raw``, as ``PolicyValue`` and ``Behaviour`` have them.
    """

    def __init__(
        self,
        config: VTraceConfig,
        agent: Agent,
        distribution: Distribution,
        optimiser: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """``distribution`` is the agent's policy's."""
        self._config = config
        self._agent = agent
        self._distribution = distribution
        self._optimiser = optimiser
        self._topology = topology
        lanes = config.batch_size // config.envs_per_actor
        self.synchronised = SynchronisedUpdate(
            Batch((TRAJECTORY_AXES,) * lanes, self.loss),
            optimiser,
            topology,
            num_pieces(config, topology),
        )
        self._turn: tuple[Trajectory, ...] = ()

    def init(self, key: jax.Array) -> TrainState:
        """Fresh parameters and optimiser state on every learner device."""

        def init(key: jax.Array) -> TrainState:
            params = self._agent.init(key)
            return TrainState(params, self._optimiser.init(params))

        state: TrainState = jax.jit(init, out_shardings=self._topology.replicated())(key)
        return state

    def params(self, state: TrainState) -> Params:
        """The parameters that actors should use."""
        return state.params

    def add(self, deliveries: Sequence[Delivery]) -> int:
        """Every turn is one update."""
        self._turn = tuple(
            assemble(delivery.parts, TRAJECTORY_AXES, self._topology) for delivery in deliveries
        )
        return 1

    def update(self, state: TrainState) -> tuple[TrainState, Logs]:
        """One synchronised update on this turn's trajectories; ``state`` is donated."""
        state, logs, _ = self.synchronised(state, self._turn)
        return state, logs

    def loss(
        self, params: Params, _: ArrayTree, trajectories: tuple[Trajectory, ...]
    ) -> tuple[jax.Array, LossOutput]:
        """The total loss, section 4.2 of the paper, as a mean over T x B."""
        trajectory = concatenate(trajectories)
        config = self._config
        output, _ = self._agent.unroll(params, trajectory.timestep, trajectory.initial_state)
        behaviour = trajectory.actor.extras
        policy = jax.tree.map(lambda leaf: leaf[:-1], output.policy)
        log_prob = self._distribution.log_prob(policy, behaviour.raw)
        timestep = trajectory.timestep
        first = timestep.first[1:]
        result = losses.vtrace(
            log_rhos=jax.lax.stop_gradient(log_prob) - behaviour.log_prob,
            rewards=clip_rewards(timestep.reward[1:] * config.reward_scale, config.reward_clip),
            discounts=timestep.discount[1:] * config.discount,
            values=output.value,
            first=first,
            lambda_=config.lambda_,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
            clip_pg_rho=config.clip_pg_rho,
        )
        policy_loss = losses.mean_loss(
            losses.policy_gradient_loss(log_prob, result.advantages, first)
        )
        baseline_loss = losses.mean_loss(losses.baseline_loss(output.value, result.targets, first))
        entropy_loss = losses.mean_loss(
            losses.entropy_loss(self._distribution.entropy(policy), first)
        )
        total = (
            policy_loss + config.baseline_cost * baseline_loss + config.entropy_cost * entropy_loss
        )
        logs = {
            "loss": total,
            "policy_loss": policy_loss,
            "baseline_loss": baseline_loss,
            "entropy": -entropy_loss,
            "value_mean": jnp.mean(output.value),
        }
        return total, LossOutput(logs)
