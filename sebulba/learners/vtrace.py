"""IMPALA's learner: V-trace actor-critic (Espeholt et al. 2018)."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
import tyro

from sebulba import losses
from sebulba.agents import distributions
from sebulba.config import Config
from sebulba.devices.topology import Topology
from sebulba.learners.base import Logs
from sebulba.learners.microbatches import fitting_the_cache
from sebulba.learners.trajectory import TrajectoryLearner
from sebulba.types import Agent, EnvSpec, Params, Trajectory
from sebulba.validation import Limit, NotNegative, Positive, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class VTraceConfig(Config):
    """IMPALA: V-trace actor-critic (Espeholt et al. 2018).

    The paper sums losses over time and batch; here they are means over T x B. Dividing the
    paper's clipping norm by T x B = 640, and RMSProp's epsilon by its square, gives the same
    updates.
    """

    discount: Share = 0.99
    """gamma."""
    lambda_: Annotated[Share, tyro.conf.arg(name="lambda")] = 1.0
    """Trace decay (remark 2 of the paper)."""
    clip_rho: Positive = 1.0
    """Truncation of the importance weights of the temporal differences."""
    clip_c: Positive = 1.0
    """Truncation of the trace-cutting weights."""
    clip_pg_rho: Positive = 1.0
    """Truncation of the importance weights of the policy gradient."""
    baseline_cost: NotNegative = 0.5
    entropy_cost: NotNegative = 0.01
    reward_clip: Limit = None
    """Rewards are clipped to +- this for learning; metrics keep the true ones."""
    reward_scale: Positive = 1.0
    """Rewards are multiplied by this for learning, before clipping."""


class VTraceLearner(TrajectoryLearner):
    """One update for each turn of trajectories.

    The agent's ``unroll`` must return an output with ``policy`` and ``value``, and its ``act``
    extras with ``log_prob`` and ``raw``, as ``PolicyValue`` and ``Behavior`` have them.
    """

    def __init__(
        self,
        config: VTraceConfig,
        agent: Agent,
        spec: EnvSpec,
        optimizer: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """``spec`` tells which distribution over actions the agent's policy parametrizes."""
        super().__init__(
            agent,
            optimizer,
            topology,
            config.batch_size // config.envs_per_actor,
            config.num_microbatches or fitting_the_cache(config, topology),
        )
        self._config = config
        self._distribution = distributions.make(spec.action, config.network.squash)

    def loss(self, params: Params, trajectory: Trajectory) -> tuple[jax.Array, Logs]:
        """The total loss, section 4.2 of the paper, as a mean over T x B."""
        config = self._config
        output, _ = self._agent.unroll(params, trajectory.timestep, trajectory.initial_state)
        behavior = trajectory.actor.extras
        policy = jax.tree.map(lambda leaf: leaf[:-1], output.policy)
        log_prob = self._distribution.log_prob(policy, behavior.raw)
        timestep = trajectory.timestep
        first = timestep.first[1:]
        result = losses.vtrace(
            log_rhos=jax.lax.stop_gradient(log_prob) - behavior.log_prob,
            rewards=losses.clip_rewards(
                timestep.reward[1:] * config.reward_scale, config.reward_clip
            ),
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
        return total, {
            "policy_loss": policy_loss,
            "baseline_loss": baseline_loss,
            "entropy": -entropy_loss,
            "value_mean": jnp.mean(output.value),
        }
