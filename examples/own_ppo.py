"""PPO of your own (Schulman et al. 2017), learning Catch: change its targets and its loss.

The rest is the library's: it shuffles the steps of a turn, and updates in epochs of minibatches.

python examples/own_ppo.py                           # from Python
cd examples && sebulba train own_ppo:own-ppo-catch   # with every option, --help, eval, sweep, pod
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import sebulba
from sebulba import learners, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnPPOConfig(learners.EpochConfig):
    """A PPO of your own."""

    clip_ratio: float = 0.2
    """epsilon: outside of 1 - epsilon to 1 + epsilon, a ratio of probabilities gains nothing."""
    baseline_cost: float = 0.5
    entropy_cost: float = 0.01


class OwnPPOLearner(learners.EpochLearner):
    """Says the targets, once in a turn, and the loss of a minibatch."""

    def __init__(self, config: OwnPPOConfig, agent: Any, spec: Any, optimizer: Any, topology: Any):
        super().__init__(config, agent, optimizer, topology)
        self._policy = sebulba.distributions.make(spec.action, config.network.squash)

    def targets(self, trajectory: sebulba.Trajectory, output: Any) -> tuple[Any, dict]:
        """Advantages and returns, ``[T, B]`` each, which stay the same in all epochs of a turn."""
        config, after = self.config, jax.tree.map(lambda leaf: leaf[1:], trajectory.timestep)
        rewards = losses.clip_rewards(after.reward * config.reward_scale, config.reward_clip)
        discounts = after.discount * config.discount
        advantages = losses.generalized_advantages(
            output.value, rewards, discounts, after.first, config.lambda_
        )
        return (advantages, output.value[:-1] + advantages), {}

    def loss(
        self, params: Any, samples: learners.Samples, progress: jax.Array
    ) -> tuple[jax.Array, dict]:
        """Equation 9 of the paper."""
        config, (advantages, returns) = self.config, samples.targets
        behavior = samples.actor.extras
        output, _ = self.agent.unroll(params, samples.timestep, samples.state)
        log_ratio = self._policy.log_prob(output.policy, behavior.raw) - behavior.log_prob
        # The step from the end of one episode to the start of the next is no part of either.
        ratio = jnp.exp(jnp.where(samples.first, 0, log_ratio))
        clipped = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        terms = -jnp.minimum(ratio * advantages, clipped * advantages)
        terms += config.baseline_cost * 0.5 * jnp.square(output.value - returns)
        entropy = self._policy.entropy(output.policy)
        terms = jnp.where(samples.first, 0, terms - config.entropy_cost * entropy)
        # The share of all steps, among them those between two episodes, which are never clipped.
        return jnp.mean(terms), {"clip_fraction": jnp.mean(ratio != clipped)}


sebulba.algorithms.register(
    sebulba.Algorithm("own-ppo", OwnPPOConfig, OwnPPOLearner, fit=learners.fit_minibatches)
)
CATCH = OwnPPOConfig(
    preset="own-ppo-catch",
    env="sebulba/Catch",
    total_steps=100_000,
    unroll_length=32,
    optimizer=sebulba.OptimizerConfig(name="adam", learning_rate=2e-3),
)
sebulba.presets.register(CATCH, "Catch with a PPO of your own.")


def main(total_steps: int = CATCH.total_steps, seed: int = 0) -> float | None:
    """Train and return the mean return of the last 100 episodes; 1 is perfect."""
    result = sebulba.train(dataclasses.replace(CATCH, total_steps=total_steps, seed=seed))
    return result.metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
