"""The reference agents: networks behind the ``Agent`` protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sebulba import networks
from sebulba.config import NetworkConfig
from sebulba.distributions import Distribution
from sebulba.types import ActorOutput, ArrayTree, EnvSpec, Params, State, Timestep


class PolicyValue(NamedTuple):
    """What an actor-critic network computes.

    Attributes:
      policy: parameters of the distribution over actions, ``[T, B, P]``.
      value: ``[T, B]``.
    """

    policy: jax.Array
    value: jax.Array


class Behaviour(NamedTuple):
    """What V-trace needs to know of the policy that acted.

    Attributes:
      log_prob: log mu(a|x), ``[B]``.
      raw: the sample before it was brought into the action's bounds, ``[B, ...]``.
    """

    log_prob: jax.Array
    raw: jax.Array


class PolicyValueHeads(nn.Module):
    """A linear policy and a linear value."""

    policy_size: int

    @nn.compact
    def __call__(self, features: jax.Array) -> PolicyValue:
        """Features ``[T, B, F]`` to outputs ``[T, B, ...]``."""
        # A small first policy is close to uniform, so that early data explores.
        policy = nn.Dense(self.policy_size, kernel_init=nn.initializers.orthogonal(0.01))(features)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(features)
        return PolicyValue(policy, value[..., 0])


class PolicyAgent:
    """Actor-critic: samples actions from a policy, or takes its mode where ``greedy``."""

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        distribution: Distribution,
        greedy: bool = False,
    ) -> None:
        """``distribution`` is over the actions of ``spec``."""
        self._config = config
        self._spec = spec
        self._distribution = distribution
        self._greedy = greedy
        self._network = networks.Network(
            config, spec, lambda: PolicyValueHeads(distribution.parameters_size)
        )

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters."""
        return init(self._network, self._spec, self.initial_state(1), key)

    def initial_state(self, batch_size: int) -> State:
        """Zeros ``[B, ...]``."""
        return networks.initial_state(self._config, self._spec, batch_size)

    def act(
        self, params: Params, key: jax.Array, timestep: Timestep, state: State
    ) -> tuple[ActorOutput, State]:
        """Actions ``[B, ...]`` and the behaviour policy's log-probabilities."""
        output, state = self.unroll(params, add_time(timestep), state)
        policy = output.policy[0]
        sample = (
            self._distribution.mode(policy)
            if self._greedy
            else self._distribution.sample(key, policy)
        )
        behaviour = Behaviour(self._distribution.log_prob(policy, sample.raw), sample.raw)
        return ActorOutput(sample.action, behaviour), state

    def unroll(
        self, params: Params, timesteps: Timestep, state: State
    ) -> tuple[PolicyValue, State]:
        """Policies and values ``[T, B, ...]``."""
        output: tuple[PolicyValue, State] = self._network.apply(
            {"params": params}, timesteps, state
        )
        return output


def init(network: networks.Network, spec: EnvSpec, state: State, key: jax.Array) -> Params:
    """Fresh parameters of ``network``."""
    return network.init(key, zero_timestep(spec, (1, 1)), state)["params"]


def zero_timestep(spec: EnvSpec, lead: tuple[int, ...]) -> Timestep:
    """A timestep of zeros with the leading axes ``lead``."""
    observation = jax.tree.map(
        lambda array: jnp.zeros(lead + tuple(array.shape), array.dtype),
        spec.observation,
        is_leaf=lambda node: hasattr(node, "dtype"),
    )
    zeros = np.zeros(lead, np.float32)
    return Timestep(observation, zeros, zeros, np.zeros(lead, np.bool_))


def add_time(tree: ArrayTree) -> Any:
    """A time axis of length 1 in front of every array."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
