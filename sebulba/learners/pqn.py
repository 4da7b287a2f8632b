"""PQN's learner: parallelized Q-network (Gallici et al. 2025)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from sebulba import losses
from sebulba.config import NetworkConfig, OptimizerConfig, refuse_policies
from sebulba.devices.topology import Topology
from sebulba.learners.base import Logs
from sebulba.learners.epochs import EpochConfig, EpochLearner
from sebulba.learners.minibatches import Samples
from sebulba.types import Agent, ArrayTree, EnvSpec, Params, Trajectory
from sebulba.validation import Count, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class PQNConfig(EpochConfig):
    """PQN: parallelized Q-network (Gallici et al. 2025).

    Q(lambda) without a replay and without a target network, for which the network's layers are
    normalized. The defaults are those of its authors for Atari, but for what
    ``docs/algorithms.md`` says.
    """

    unroll_length: Count = 32
    """T: steps of one trajectory."""
    num_epochs: Count = 2
    """How often the trajectories of a turn are learned from."""
    num_minibatches: Count = 32
    """Steps of the optimizer in each epoch. Each takes an equal part of all steps, or with an LSTM
    of all trajectories, in random order."""
    lambda_: Share = 0.65
    """Decay of the traces, from 0 for one-step targets to 1 for whole returns."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.001
    """Share of random actions once exploration_fraction of total_steps is done."""
    exploration_fraction: Share = 0.1
    """Share of total_steps in which the share of random actions falls linearly."""
    evaluation_epsilon: Share = 0.0
    """Share of random actions in evaluation."""
    network: NetworkConfig = NetworkConfig(layer_norm=True)
    optimizer: OptimizerConfig = OptimizerConfig(
        name="radam", learning_rate=2.5e-4, decay_to_zero=False, max_gradient_norm=10.0
    )

    def validate(self) -> None:
        """Refuse what can never work, as ``Config.validate`` does."""
        super().validate()
        refuse_policies(self, "PQN")


class PQNLearner(EpochLearner):
    """Several epochs of Q(lambda) in each turn, on all trajectories of that turn.

    The agent's ``unroll`` must return Q values ``[T, B, A]``.
    """

    config: PQNConfig

    def __init__(
        self,
        config: PQNConfig,
        agent: Agent,
        spec: EnvSpec,
        optimizer: optax.GradientTransformation,
        topology: Topology,
    ) -> None:
        """The learner devices must divide the batch; ``spec`` is not needed."""
        super().__init__(config, agent, optimizer, topology)

    def targets(self, trajectory: Trajectory, output: ArrayTree) -> tuple[jax.Array, Logs]:
        """Lambda returns of the largest Q values before the first epoch."""
        config = self.config
        following = jax.tree.map(lambda leaf: leaf[1:], trajectory.timestep)
        returns = losses.lambda_returns(
            jnp.max(output, axis=-1),
            losses.clip_rewards(following.reward * config.reward_scale, config.reward_clip),
            following.discount * config.discount,
            following.first,
            config.lambda_,
        )
        return returns, {}

    def loss(self, params: Params, samples: Samples, progress: jax.Array) -> tuple[jax.Array, Logs]:
        """Half the squared errors of Q(x_t, a_t), as means over L x N."""
        q_values, _ = self.agent.unroll(params, samples.timestep, samples.state)
        actions = samples.actor.action[..., None]
        chosen = jnp.take_along_axis(q_values, actions, axis=-1)[..., 0]
        errors = jnp.where(samples.first, 0.0, samples.targets - chosen)
        total = losses.mean_loss(0.5 * jnp.square(errors))
        return total, {
            "td_error": losses.mean_loss(jnp.abs(errors)),
            "q_mean": jnp.mean(q_values),
        }
