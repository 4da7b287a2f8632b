"""IMPALA's learner: V-trace actor-critic (Espeholt et al. 2018)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from sebulba import losses
from sebulba.agents import distributions
from sebulba.config import Config, whole_unrolls
from sebulba.devices.topology import Topology
from sebulba.learners.base import Logs
from sebulba.learners.microbatches import fitting_the_cache
from sebulba.learners.trajectory import TrajectoryLearner
from sebulba.types import Agent, EnvSpec, Params, Trajectory
from sebulba.validation import Limit, NotNegative, Positive, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class VTraceConfig(Config):
    """IMPALA: V-trace actor-critic (Espeholt et al. 2018).

    The paper sums its losses over time and batch; here they are means over T x B. Dividing the
    paper's clipping norm by its T x B = 640, and RMSProp's epsilon by 640 squared, gives the same
    updates.
    """

    discount: Share = 0.99
    """gamma."""
    lambda_: Share = 1.0
    """Trace decay (remark 2 of the paper)."""
    clip_rho: Positive = 1.0
    """rho-bar: upper limit of the importance weights of the temporal differences."""
    clip_c: Positive = 1.0
    """c-bar: upper limit of the weights that cut the traces."""
    clip_pg_rho: Positive = 1.0
    """Upper limit of the importance weights of the policy gradient."""
    baseline_cost: NotNegative = 0.5
    """Weight of the value's loss beside the policy's."""
    entropy_cost: NotNegative = 0.01
    """Weight of the policy's entropy, which keeps it from settling too early."""
    entropy_decay_to_zero: bool = False
    """Decay entropy_cost linearly to 0 at total_steps, so that actions become less random."""
    reward_clip: Limit = None
    """Rewards are clipped to +- this for learning; metrics report the true ones."""
    reward_scale: Positive = 1.0
    """Rewards are multiplied by this for learning, before clipping."""


class VTraceLearner(TrajectoryLearner):
    """One V-trace update in each turn, on all trajectories of that turn.

    The outputs of the agent's ``unroll`` must have the fields of ``agents.reference.PolicyValue``,
    and the extras of its ``act`` those of ``agents.reference.Behavior``.

    Attributes:
      config: weights and limits.
      agent: whose parameters are learned.
      distribution: over actions.
    """

    def __init__(
        self,
        config: VTraceConfig,
        agent: Agent,
        spec: EnvSpec,
        optimizer: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """``spec.action`` says which distribution over actions the agent's policy parametrizes."""
        super().__init__(
            agent,
            optimizer,
            topology,
            whole_unrolls(config),
            config.num_microbatches or fitting_the_cache(config, topology),
        )
        self.config = config
        self.distribution = distributions.make(spec.action, config.network.squash)

    def loss(
        self, params: Params, trajectory: Trajectory, progress: jax.Array
    ) -> tuple[jax.Array, Logs]:
        """The total loss (section 4.2 of the paper) and its terms, as means over T x B."""
        config = self.config
        output, _ = self.agent.unroll(params, trajectory.timestep, trajectory.initial_state)
        behavior = trajectory.actor.extras
        # T + 1 outputs, but T actions: of the last timestep only the value is used, to bootstrap.
        policy = jax.tree.map(lambda leaf: leaf[:-1], output.policy)
        # Both probabilities are of the raw sample: the Jacobian of squashing cancels in pi / mu.
        log_prob = self.distribution.log_prob(policy, behavior.raw)
        # Reward, discount and ``first`` of timestep t + 1 are the consequences of action t.
        timestep = trajectory.timestep
        first = timestep.first[1:]
        result = losses.vtrace(
            log_rhos=jax.lax.stop_gradient(log_prob) - behavior.log_prob,
            rewards=losses.clip_rewards(
                timestep.reward[1:] * config.reward_scale, config.reward_clip
            ),
            discounts=timestep.discount[1:] * config.discount,
            values=output.value,  # [T+1, B], unlike the other arguments.
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
            losses.entropy_loss(self.distribution.entropy(policy), first)
        )
        entropy_cost = config.entropy_cost * (1 - progress if config.entropy_decay_to_zero else 1)
        total = policy_loss + config.baseline_cost * baseline_loss + entropy_cost * entropy_loss
        return total, {
            "policy_loss": policy_loss,
            "baseline_loss": baseline_loss,
            "entropy": -entropy_loss,  # The loss is minus the entropy.
            "value_mean": jnp.mean(output.value),
        }
