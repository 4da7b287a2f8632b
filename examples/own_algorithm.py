"""An algorithm of your own: advantage actor-critic (A2C, Mnih et al. 2016), learning Catch.

It takes a config class, a learner that says the loss, one record of both, and a preset:

python examples/own_algorithm.py                        # from Python
cd examples && sebulba train own_algorithm:a2c-catch    # with every option, --help, eval, tune, pod
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro

import sebulba
from sebulba import losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class A2CConfig(sebulba.Config):
    """A2C: its gradient is right only for the policy that acted, so actors wait for updates."""

    policy_lag: Literal["0"] = "0"
    """Act on exactly the parameters that the update starts from: A2C allows nothing else."""
    discount: float = 0.99
    """gamma."""
    baseline_cost: float = 0.5
    entropy_cost: float = 0.01


class A2CLearner(sebulba.TrajectoryLearner):
    """One update for each turn; the advantage is of the return to the end of the unroll."""

    def __init__(
        self,
        config: A2CConfig,
        agent: sebulba.Agent,
        spec: sebulba.EnvSpec,
        optimizer: Any,
        topology: sebulba.Topology,
    ) -> None:
        super().__init__(
            agent,
            optimizer,
            topology,
            unrolls_per_turn=config.batch_size // config.envs_per_actor,
            num_microbatches=config.num_microbatches or 1,
        )
        self._config = config
        self._policy = sebulba.distributions.make(spec.action, config.network.squash)

    def loss(
        self, params: Any, trajectory: sebulba.Trajectory, progress: jax.Array
    ) -> tuple[jax.Array, dict[str, Any]]:
        """The loss to differentiate, and what to log."""
        config, timestep = self._config, trajectory.timestep
        output, _ = self.agent.unroll(params, timestep, trajectory.initial_state)
        policy = output.policy[:-1]
        log_prob = self._policy.log_prob(policy, trajectory.actor.extras.raw)
        # The step from the end of one episode to the start of the next is no part of either.
        first = timestep.first[1:]
        returns = losses.n_step_returns(
            jax.lax.stop_gradient(output.value),
            timestep.reward[1:],
            timestep.discount[1:] * config.discount,
            first,
            n=config.unroll_length,
        )
        advantages = returns - output.value[:-1]
        policy_loss = jnp.mean(losses.policy_gradient_loss(log_prob, advantages, first))
        baseline_loss = jnp.mean(losses.baseline_loss(output.value, returns, first))
        entropy_loss = jnp.mean(losses.entropy_loss(self._policy.entropy(policy), first))
        total = policy_loss + config.baseline_cost * baseline_loss
        return total + config.entropy_cost * entropy_loss, {"entropy": -entropy_loss}


A2C = sebulba.algorithms.register(sebulba.Algorithm("a2c", A2CConfig, A2CLearner))

CATCH = A2CConfig(
    preset="a2c-catch",
    env="sebulba/Catch",
    total_steps=100_000,
    unroll_length=5,
    optimizer=sebulba.OptimizerConfig(name="adam", learning_rate=5e-3),
)
sebulba.presets.register(CATCH, "Catch with advantage actor-critic.")


def main(total_steps: int = CATCH.total_steps, seed: int = 0) -> float | None:
    """Train and return the mean return of the last 100 episodes; 1 is perfect."""
    config = dataclasses.replace(CATCH, total_steps=total_steps, seed=seed)
    result = sebulba.train(config, algorithm=A2C)
    return result.metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
