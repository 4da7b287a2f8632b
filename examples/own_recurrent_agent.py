"""A recurrent agent of your own, a GRU in flax, learning a task that needs memory.

python examples/own_recurrent_agent.py
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import tyro

import sebulba
from sebulba.types import Params, State


class Network(nn.Module):
    """One step: from the state of the GRU and a timestep to the next state and the outputs."""

    num_actions: int
    size: int

    @nn.compact
    def __call__(
        self, state: State, timestep: sebulba.Timestep
    ) -> tuple[State, sebulba.PolicyValue]:
        # Here and nowhere else, so that acting and learning forget alike.
        state = jnp.where(timestep.first[:, None], 0, state)
        features = nn.relu(nn.Dense(self.size)(timestep.observation))
        state, features = nn.GRUCell(self.size)(state, features)
        logits, value = nn.Dense(self.num_actions)(features), nn.Dense(1)(features)
        return state, sebulba.PolicyValue(logits, value[:, 0])


class GRUAgent:
    """Samples from its policy. Its state is that of the GRU, ``[B, size]``.

    With an attribute ``observes_last_action = True`` it would also get the last action, as
    ``timestep.observation["last_action"]``; the cue of this task is in the observation alone.
    """

    def __init__(self, spec: sebulba.EnvSpec, size: int = 64) -> None:
        self._network = Network(spec.action.num_actions, size)
        self._policy = sebulba.distributions.make(spec.action)
        self._shape, self._size = spec.observation.shape, size

    def init(self, key: jax.Array) -> Params:
        zero, no = jnp.zeros(1), jnp.zeros(1, bool)
        timestep = sebulba.Timestep(jnp.zeros((1, *self._shape)), zero, zero, no)
        return self._network.init(key, self.initial_state(1), timestep)

    def initial_state(self, batch_size: int) -> State:
        return jnp.zeros((batch_size, self._size))

    def act(
        self, params: Params, key: jax.Array, timestep: sebulba.Timestep, state: State
    ) -> tuple[sebulba.ActorOutput, State]:
        state, output = self._network.apply(params, state, timestep)
        sample = self._policy.sample(key, output.policy)
        log_prob = self._policy.log_prob(output.policy, sample.raw)
        return sebulba.ActorOutput(sample.action, sebulba.Behavior(log_prob, sample.raw)), state

    def unroll(
        self, params: Params, timesteps: sebulba.Timestep, state: State
    ) -> tuple[sebulba.PolicyValue, State]:
        def step(state: State, timestep: sebulba.Timestep) -> tuple[State, sebulba.PolicyValue]:
            return self._network.apply(params, state, timestep)

        state, outputs = jax.lax.scan(step, state, timesteps)
        return outputs, state


MEMORY = sebulba.VTraceConfig(
    env="sebulba/Memory",
    total_steps=400_000,
    envs_per_actor=16,
    batch_size=16,
    optimizer=sebulba.OptimizerConfig(name="adam", learning_rate=2e-3),
)


def main(total_steps: int = MEMORY.total_steps, seed: int = 0) -> float | None:
    """Train and return the mean return of the last 100 episodes; 1 is perfect, 0 chance."""
    config = dataclasses.replace(MEMORY, total_steps=total_steps, seed=seed)
    agent = GRUAgent(sebulba.envs.make(config.env, 1, seed=0).spec)
    result = sebulba.train(config, agent=agent)  # Checks the agent first: sebulba.check_agent.
    return result.metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
