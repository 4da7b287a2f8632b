"""PPO's learner: proximal policy optimization (Schulman et al. 2017)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sebulba import losses
from sebulba.agents import distributions
from sebulba.config import OptimizerConfig
from sebulba.devices.topology import Topology
from sebulba.learners.base import Logs
from sebulba.learners.epochs import EpochConfig, EpochLearner, masked_mean
from sebulba.learners.minibatches import Samples
from sebulba.runtime.threads import wait_until_ready
from sebulba.types import Agent, ArrayTree, EnvSpec, Params, Trajectory
from sebulba.validation import ConfigError, Count, Limit, NotNegative, Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(EpochConfig):
    """PPO: proximal policy optimization (Schulman et al. 2017).

    ``docs/algorithms.md`` goes through the details of Huang et al. (2022), "The 37 Implementation
    Details of Proximal Policy Optimization". With policy_lag 0 this is the algorithm of the paper.
    With any other, the ratio is to the policy that acted, and everything else stays the same.
    """

    unroll_length: Count = 128
    """T: steps of one trajectory."""
    clip_ratio: Positive = 0.2
    """epsilon: the ratio of the probabilities is clipped to 1 - epsilon and 1 + epsilon."""
    clip_value: Limit = None
    """How far a value may move in a turn before its loss stops falling; None: any distance."""
    normalize_advantages: bool = True
    """Give the advantages of all devices and hosts, in each turn, mean 0 and variance 1."""
    target_kl: Limit = None
    """Leave out the other epochs of a turn once the mean of approx_kl over an epoch is larger."""
    baseline_cost: NotNegative = 0.5
    """Weight of the value's loss beside the policy's."""
    entropy_cost: NotNegative = 0.01
    """Weight of the policy's entropy, which keeps it from settling too early."""
    entropy_decay_to_zero: bool = False
    """Decay entropy_cost linearly to 0 at total_steps, so that actions become less random."""
    optimizer: OptimizerConfig = OptimizerConfig(
        name="adam", learning_rate=2.5e-4, epsilon=1e-5, max_gradient_norm=0.5
    )


class PPOTargets(NamedTuple):
    """What the loss takes as constants, ``[T, B]`` each, from before the first epoch.

    Attributes:
      advantages: normalized, if they are to be.
      returns: what the values should be.
      values: of the timesteps at which the actions were chosen.
      weights: 0 for steps that only reset an environment, and the same number for all others, so
        that the mean of weighted terms over a whole epoch is that of the other steps' terms.
    """

    advantages: jax.Array
    returns: jax.Array
    values: jax.Array
    weights: jax.Array


class PPOLearner(EpochLearner):
    """Several epochs of clipped updates in each turn, on all trajectories of that turn.

    The outputs of the agent's ``unroll`` must have the fields of ``agents.reference.PolicyValue``,
    and the extras of its ``act`` those of ``agents.reference.Behavior``.

    Attributes:
      config: weights and limits.
      agent: whose parameters are learned.
      distribution: over actions.
    """

    config: PPOConfig

    def __init__(
        self,
        config: PPOConfig,
        agent: Agent,
        spec: EnvSpec,
        optimizer: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """``spec.action`` says which distribution over actions the agent's policy parametrizes."""
        super().__init__(config, agent, optimizer, topology)
        self.distribution = distributions.make(spec.action, config.network.squash)

    def targets(self, trajectory: Trajectory, output: ArrayTree) -> tuple[PPOTargets, Logs]:
        """Advantages and returns of the values before the first epoch."""
        config = self.config
        # Reward, discount and ``first`` of timestep t + 1 are the consequences of action t.
        following = jax.tree.map(lambda leaf: leaf[1:], trajectory.timestep)
        valid = ~following.first
        rewards = losses.clip_rewards(following.reward * config.reward_scale, config.reward_clip)
        discounts = following.discount * config.discount
        advantages = losses.generalized_advantages(
            output.value, rewards, discounts, following.first, config.lambda_
        )
        values = output.value[:-1]
        returns = values + advantages
        # Of the errors of the values, which are the advantages, in terms of the returns. Of returns
        # that are all the same there is nothing to explain.
        to_explain = _variance(returns, valid)
        variance = _variance(advantages, valid)
        unexplained = variance / jnp.where(to_explain > 0, to_explain, jnp.nan)
        if config.normalize_advantages:
            deviation = jnp.sqrt(variance)
            centered = advantages - masked_mean(advantages, valid)
            normalized = jnp.where(deviation > 0, centered / (deviation + 1e-8), 0)
            advantages = jnp.where(valid, normalized, 0)
        logs = {"explained_variance": 1 - unexplained, "value_mean": masked_mean(values, valid)}
        share = masked_mean(valid, jnp.ones_like(valid))
        weights = jnp.where(valid, 1 / share, 0)
        return PPOTargets(advantages, returns, values, weights), logs

    def loss(self, params: Params, samples: Samples, progress: jax.Array) -> tuple[jax.Array, Logs]:
        """The total loss (eq. 9 of the paper) and its terms, as means over L x N."""
        config, targets, first = self.config, samples.targets, samples.first
        output, _ = self.agent.unroll(params, samples.timestep, samples.state)
        behavior = samples.actor.extras
        # Both probabilities are of the raw sample: the Jacobian of squashing cancels in pi / mu.
        policy = losses.clipped_policy_loss(
            self.distribution.log_prob(output.policy, behavior.raw),
            behavior.log_prob,
            targets.advantages,
            first,
            config.clip_ratio,
        )
        policy_loss = losses.mean_loss(policy.loss)
        baseline_loss = losses.mean_loss(
            losses.clipped_value_loss(
                output.value, targets.values, targets.returns, first, config.clip_value
            )
        )
        entropy_loss = losses.mean_loss(
            losses.entropy_loss(self.distribution.entropy(output.policy), first)
        )
        entropy_cost = config.entropy_cost * (1 - progress if config.entropy_decay_to_zero else 1)
        total = policy_loss + config.baseline_cost * baseline_loss + entropy_cost * entropy_loss
        return total, {
            "policy_loss": policy_loss,
            "baseline_loss": baseline_loss,
            "entropy": -entropy_loss,  # The loss is minus the entropy.
            # What target_kl is compared with, and a share, must not depend on how many steps reset.
            "approx_kl": losses.mean_loss(targets.weights * policy.approx_kl),
            "clip_fraction": losses.mean_loss(targets.weights * policy.is_clipped),
        }

    def is_enough(self, epoch: Logs) -> bool:
        """Whether the policy has moved by more than ``target_kl`` from the one that acted."""
        if self.config.target_kl is None:
            return False
        if "approx_kl" not in epoch:
            raise ConfigError(
                f"target_kl is {self.config.target_kl}, but {type(self).__name__}.loss has no log "
                "approx_kl, with which it is compared: return one, or set target_kl to None, on "
                "the command line with --target-kl None."
            )
        wait_until_ready(epoch["approx_kl"], lambda: None)
        return bool(np.mean(jax.device_get(epoch["approx_kl"])) > self.config.target_kl)


def _variance(values: jax.Array, valid: jax.Array) -> jax.Array:
    """That of the ``valid`` ones of all learner devices; 0 if they are the same up to rounding."""
    variance = masked_mean(jnp.square(values - masked_mean(values, valid)), valid)
    is_constant = variance <= 1e-10 * masked_mean(jnp.square(values), valid)
    return jnp.where(is_constant, 0, variance)
