"""Own environment, own agent, own optimizer: the library at the level of its protocols.

The environment is a bandit whose better arm is shown in the observation; the agent is a linear
policy in plain JAX, without any network library.

python examples/own_parts.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import sebulba
from sebulba.types import Params, State


class Bandit:
    """B bandits with episodes of one step; the observation is one-hot in the better arm."""

    def __init__(self, num_envs: int, seed: int, num_arms: int = 4) -> None:
        self.spec = sebulba.EnvSpec(
            observation=sebulba.ArraySpec((num_arms,), np.dtype(np.float32)),
            action=sebulba.DiscreteSpec(num_arms),
            num_envs=num_envs,
        )
        self._random = np.random.default_rng(seed)
        self._arm = np.zeros(num_envs, np.int64)
        self._first = np.zeros(num_envs, bool)

    def reset(self) -> sebulba.Timestep:
        self._first = np.ones_like(self._first)
        self._arm = self._random.integers(self.spec.action.num_actions, size=self.spec.num_envs)
        return self._timestep(np.zeros(self.spec.num_envs, np.float32))

    def step(self, action: np.ndarray) -> sebulba.Timestep:
        if self._first.all():  # Every arm was just shown: this action is judged.
            self._first = np.zeros_like(self._first)
            return self._timestep((action == self._arm).astype(np.float32))
        return self.reset()  # The episode is over: the action is ignored.

    def close(self) -> None:
        pass

    def _timestep(self, reward: np.ndarray) -> sebulba.Timestep:
        observation = np.eye(self.spec.action.num_actions, dtype=np.float32)[self._arm]
        return sebulba.Timestep(observation, reward, self._first.astype(np.float32), self._first)


class LinearAgent:
    """Logits and value are linear in the observation; there is no recurrent state."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        self._shape = (num_inputs, num_actions)
        self._policy = sebulba.distributions.Categorical(num_actions)

    def init(self, key: jax.Array) -> Params:
        return {"policy": jnp.zeros(self._shape), "value": jnp.zeros(self._shape[0])}

    def initial_state(self, batch_size: int) -> State:
        return ()

    def act(
        self, params: Params, key: jax.Array, timestep: sebulba.Timestep, state: State
    ) -> tuple[sebulba.ActorOutput, State]:
        output, state = self.unroll(params, timestep, state)
        sample = self._policy.sample(key, output.policy)
        log_prob = self._policy.log_prob(output.policy, sample.raw)
        behavior = sebulba.Behavior(log_prob, sample.raw)
        return sebulba.ActorOutput(sample.action, behavior), state

    def unroll(
        self, params: Params, timesteps: sebulba.Timestep, state: State
    ) -> tuple[sebulba.PolicyValue, State]:
        observation = timesteps.observation
        logits, value = observation @ params["policy"], observation @ params["value"]
        return sebulba.PolicyValue(logits, value), state


def main(total_steps: int = 100_000, seed: int = 0) -> float | None:
    """Train and return the mean return of the last 100 episodes; 1 is perfect, 0.25 chance."""
    config = sebulba.VTraceConfig(env="bandit", total_steps=total_steps, seed=seed)
    result = sebulba.train(
        config,
        make_env=Bandit,
        agent=LinearAgent(4, 4),
        optimizer=optax.sgd(1.0),
    )
    return result.metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
