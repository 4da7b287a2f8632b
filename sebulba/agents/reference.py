"""The reference agents: networks behind the ``Agent`` protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agents import networks
from sebulba.agents.distributions import Distribution
from sebulba.config import NetworkConfig
from sebulba.envs.previous_action import has_action
from sebulba.types import (
    ActorOutput,
    ArrayTree,
    DiscreteSpec,
    EnvSpec,
    Params,
    State,
    Timestep,
)
from sebulba.validation import ConfigError


class PolicyValue(NamedTuple):
    """What an actor-critic network computes.

    Attributes:
      policy: parameters of the distribution over actions, ``[T, B, P]``.
      value: ``[T, B]``.
    """

    policy: jax.Array
    value: jax.Array


class Behavior(NamedTuple):
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
        """Actions ``[B, ...]`` and the behavior policy's log-probabilities."""
        output, state = self.unroll(params, add_time(timestep), state)
        policy = output.policy[0]
        sample = (
            self._distribution.mode(policy)
            if self._greedy
            else self._distribution.sample(key, policy)
        )
        behavior = Behavior(self._distribution.log_prob(policy, sample.raw), sample.raw)
        return ActorOutput(sample.action, behavior), state

    def unroll(
        self, params: Params, timesteps: Timestep, state: State
    ) -> tuple[PolicyValue, State]:
        """Policies and values ``[T, B, ...]``."""
        output: tuple[PolicyValue, State] = self._network.apply(
            {"params": params}, timesteps, state
        )
        return output


class DuelingHeads(nn.Module):
    """Advantages and a value, joined to Q values (Wang et al. 2016, "Dueling", eq. 9)."""

    num_actions: int
    hidden_size: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Features ``[T, B, F]`` to Q values ``[T, B, A]``."""
        advantage = nn.Dense(self.num_actions)(nn.relu(nn.Dense(self.hidden_size)(features)))
        value = nn.Dense(1)(nn.relu(nn.Dense(self.hidden_size)(features)))
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class QAgent:
    """Acts on the largest Q value, which it reports in ``extras`` as ``[B, A]``.

    The Q values are on the rescaled axis of R2D2.
    """

    def __init__(self, config: NetworkConfig, spec: EnvSpec, epsilon: float = 0.0) -> None:
        """``epsilon``: share of random actions. Actors explore by ``inference.exploration``.

        Raises:
          ValueError: the actions are continuous.
        """
        if not isinstance(spec.action, DiscreteSpec):
            raise ValueError(
                f"the action is {spec.action}: Q-learning takes the best of a finite number of "
                "actions. Choose an environment with discrete actions, or V-trace."
            )
        num_actions = spec.action.num_actions
        self._config = config
        self._spec = spec
        self._epsilon = epsilon
        self._network = networks.Network(
            config, spec, lambda: DuelingHeads(num_actions, config.core_size)
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
        """Actions ``[B]`` and Q values ``[B, A]``."""
        q_values, state = self.unroll(params, add_time(timestep), state)
        output = ActorOutput(jnp.argmax(q_values[0], axis=-1).astype(jnp.int32), q_values[0])
        if self._epsilon > 0:
            output = epsilon_greedy(key, output, jnp.float32(self._epsilon))
        return output, state

    def unroll(self, params: Params, timesteps: Timestep, state: State) -> tuple[jax.Array, State]:
        """Q values ``[T, B, A]``."""
        output: tuple[jax.Array, State] = self._network.apply({"params": params}, timesteps, state)
        return output


def epsilon_greedy(key: jax.Array, output: ActorOutput, epsilon: jax.Array) -> ActorOutput:
    """Replace the actions of ``QAgent`` by uniform ones with probability ``epsilon`` (``[B]``)."""
    choose, draw = jax.random.split(key)
    batch, num_actions = output.extras.shape
    explore = jax.random.uniform(choose, (batch,), jnp.float32) < epsilon
    random = jax.random.randint(draw, (batch,), 0, num_actions, jnp.int32)
    return output._replace(action=jnp.where(explore, random, output.action))


def init(network: networks.Network, spec: EnvSpec, state: State, key: jax.Array) -> Params:
    """Fresh parameters of ``network``."""
    return network.init(key, zero_timestep(spec, (1, 1)), state)["params"]


def zero_timestep(spec: EnvSpec, lead: tuple[int, ...]) -> Timestep:
    """A timestep of zeros with the leading axes ``lead``."""
    observation = jax.tree.map(
        lambda array: jnp.zeros(lead + tuple(array.shape), array.dtype), spec.observation
    )
    zeros = np.zeros(lead, np.float32)
    return Timestep(observation, zeros, zeros, np.zeros(lead, np.bool_))


def add_time(tree: ArrayTree) -> Any:
    """A time axis of length 1 in front of every array."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def check_observation(network: NetworkConfig, spec: EnvSpec, env: str) -> None:
    """Refuse a network that cannot take what ``env`` observes.

    Raises:
      ConfigError: which network could.
    """
    observation = spec.observation
    if has_action(spec):
        observation = observation["observation"]
    shapes = (
        {name: tuple(array.shape) for name, array in observation.items()}
        if isinstance(observation, dict)
        else tuple(observation.shape)
    )
    if isinstance(shapes, dict):
        if network.torso != "mlp" or network.frame_stack > 1:
            raise ConfigError(
                f"{env} observes a dict {shapes}: only torso mlp with frame_stack 1 takes "
                "that. Set --network.torso mlp --network.frame-stack 1."
            )
        return
    if network.torso == "mlp":
        return
    rank = 2 if network.frame_stack > 1 else len(shapes)
    if len(shapes) != rank or rank not in (2, 3) or min(shapes[:2]) < 36:
        color = len(shapes) == 3 and min(shapes[:2]) >= 36
        raise ConfigError(
            f"{env} observes an array of shape {shapes}: torso {network.torso} takes images "
            "of at least 36 x 36 pixels, [height, width] or, with --network.frame-stack 1, "
            "[height, width, channels]. Set "
            + ("" if color else "--network.torso mlp ")
            + "--network.frame-stack 1."
        )
    if network.pixels == "normalized" and observation.dtype != np.uint8:
        raise ConfigError(
            f"{env} observes {observation.dtype}: only pixels of uint8 are normalized. "
            "Set --network.pixels scaled."
        )
