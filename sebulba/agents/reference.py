"""The reference agents: the reference networks as ``sebulba.types.Agent``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agents import networks, normalization
from sebulba.agents.distributions import DiagonalGaussian, Distribution
from sebulba.agents.pretrained import Pretrained
from sebulba.agents.torsos import has_channels_first, is_image
from sebulba.config import NetworkConfig
from sebulba.envs.base import warnings_of_pixels
from sebulba.envs.previous_action import check_action, has_action, without_action
from sebulba.ops.relu import relu
from sebulba.types import (
    ActorOutput,
    Agent,
    ArrayTree,
    DiscreteSpec,
    EnvSpec,
    Params,
    State,
    Timestep,
)
from sebulba.validation import ConfigError


class PolicyValue(NamedTuple):
    """The outputs of an actor-critic network.

    Attributes:
      policy: parameters of the distribution over actions, ``[T, B, P]``.
      value: the state's value, ``[T, B]``.
    """

    policy: jax.Array
    value: jax.Array


class Behavior(NamedTuple):
    """What V-trace and PPO need to know about the policy that acted.

    Attributes:
      log_prob: log mu(a_t | x_t), ``[B]``.
      raw: the sample before it was brought into the bounds of the action, ``[B, ...]``.
    """

    log_prob: jax.Array
    raw: jax.Array


class PolicyValueHeads(nn.Module):
    """Linear layers for the policy and the value."""

    policy_size: int
    num_log_stds: int = 0
    """How many parameters of the policy, the last ones, are log standard deviations."""
    initial_log_std: float = 0.0
    state_dependent_std: bool = True

    @nn.compact
    def __call__(self, features: jax.Array, of_value: jax.Array | None = None) -> PolicyValue:
        """Map features ``[T, B, F]`` to outputs ``[T, B, ...]``.

        Args:
          features: for the policy, and for the value too if ``of_value`` is None.
          of_value: features for the value.
        """
        # With small weights the first policy is nearly uniform, so that the first data explore.
        num_free = 0 if self.state_dependent_std else self.num_log_stds
        policy = nn.Dense(
            self.policy_size - num_free,
            kernel_init=nn.initializers.orthogonal(0.01),
            bias_init=self._first_bias,
        )(features)
        if num_free:
            begin = nn.initializers.constant(self.initial_log_std)
            free = self.param("free", begin, (num_free,), jnp.float32)
            free = jnp.broadcast_to(free, (*policy.shape[:-1], num_free))
            policy = jnp.concatenate([policy, free], axis=-1)
        of_value = features if of_value is None else of_value
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(of_value)
        return PolicyValue(policy, value[..., 0])

    def _first_bias(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        # The features' part of the first outputs is small, so these begin at their bias.
        is_log_std = jnp.arange(shape[0]) >= self.policy_size - self.num_log_stds
        return jnp.where(is_log_std, self.initial_log_std, 0).astype(dtype)


class NetworkAgent:
    """What the reference agents have in common."""

    def __init__(
        self, config: NetworkConfig, spec: EnvSpec, heads: Callable[[], nn.Module]
    ) -> None:
        self._config = config
        self._spec = spec
        self._network = networks.Network(config, spec, heads)
        self.has_observed_state = config.core == "none"
        self.observes_last_action = config.core == "lstm"

    def init(self, key: jax.Array) -> Params:
        """Return new random parameters."""
        return init(self._network, self._spec, self.initial_state(1), key)

    def initial_state(self, batch_size: int) -> State:
        """Return the state at the start of an episode: zeros ``[B, ...]``."""
        return networks.initial_state(self._config, self._spec, batch_size)

    def measure(
        self, params: Params, timesteps: Timestep, average: Callable[[ArrayTree], ArrayTree]
    ) -> ArrayTree:
        """Return what ``absorb`` needs of timesteps ``[T, B, ...]``; see ``types.Agent``."""
        if not self._config.normalize_observations:
            return ()
        seen = timesteps.observation
        seen = seen["observation"] if has_action(self._spec) else seen
        arrays = networks.numbers(seen, 2)
        return normalization.measure(params[networks.MOMENTS], arrays, average)

    def absorb(self, params: Params, before: Params, measured: ArrayTree) -> Params:
        """Return ``params`` that normalize observations by what was measured, too."""
        if not self._config.normalize_observations:
            return params
        # Not the moments in ``params``, to which the optimizer may have done something.
        moments = normalization.absorb(before[networks.MOMENTS], measured)
        return {**params, networks.MOMENTS: moments}


class PolicyAgent(NetworkAgent):
    """An actor-critic agent, which samples from its policy or, if ``greedy``, takes its mode."""

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        distribution: Distribution,
        greedy: bool = False,
    ) -> None:
        """``distribution`` is a distribution over the actions of ``spec``."""
        size = distribution.parameters_size
        is_gaussian = isinstance(distribution, DiagonalGaussian)
        num_log_stds = size // 2 if is_gaussian else 0
        options = (num_log_stds, config.initial_log_std, config.state_dependent_std)
        super().__init__(config, spec, lambda: PolicyValueHeads(size, *options))
        self._distribution = distribution
        self._greedy = greedy

    def act(
        self, params: Params, key: jax.Array, timestep: Timestep, state: State
    ) -> tuple[ActorOutput, State]:
        """Return actions ``[B, ...]`` with ``Behavior`` as extras, and the next state."""
        # Networks take [T, B, ...], so acting is an unroll of one step.
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
        """Return policies and values ``[T, B, ...]``, and the last state."""
        return self._network.apply({"params": params}, timesteps, state)


class DuelingHeads(nn.Module):
    """Q values from advantages and a value (Wang et al. 2016, "Dueling Network", eq. 9)."""

    num_actions: int
    hidden_size: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Map features ``[T, B, F]`` to Q values ``[T, B, A]``."""
        advantage = nn.Dense(self.num_actions)(relu(nn.Dense(self.hidden_size)(features)))
        value = nn.Dense(1)(relu(nn.Dense(self.hidden_size)(features)))
        # Without the mean, advantages and value would be determined only up to a constant.
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class QAgent(NetworkAgent):
    """A Q-learning agent, which takes the action with the largest Q value.

    For R2D2 its Q values are h(Q), rescaled (see ``sebulba.losses.rescale``).
    """

    def __init__(
        self, config: NetworkConfig, spec: EnvSpec, epsilon: float = 0.0, dueling: bool = True
    ) -> None:
        """Makes the network.

        Args:
          config: of the network.
          spec: the observations and the action of the environment.
          epsilon: share of random actions in evaluation. In training it is 0, and the actors
            explore (see ``sebulba.inference.exploration``).
          dueling: whether the heads are ``DuelingHeads``, or one linear layer.

        Raises:
          ValueError: the action is not a single discrete one.
        """
        if not isinstance(spec.action, DiscreteSpec):
            raise ValueError(
                f"the action is {spec.action}: Q-learning takes the best of the actions of a "
                "DiscreteSpec. Choose an environment with one discrete action, or V-trace or PPO."
            )
        num_actions = spec.action.num_actions
        heads = partial(DuelingHeads, num_actions, config.core_size)
        super().__init__(config, spec, heads if dueling else partial(nn.Dense, num_actions))
        self._epsilon = epsilon

    def act(
        self, params: Params, key: jax.Array, timestep: Timestep, state: State
    ) -> tuple[ActorOutput, State]:
        """Return actions ``[B]`` with their Q values ``[B, A]`` as extras, and the next state."""
        q_values, state = self.unroll(params, add_time(timestep), state)
        output = ActorOutput(jnp.argmax(q_values[0], axis=-1).astype(jnp.int32), q_values[0])
        # A condition in Python, so that training computes no random numbers here.
        if self._epsilon > 0:
            output = epsilon_greedy(key, output, jnp.float32(self._epsilon))
        return output, state

    def unroll(self, params: Params, timesteps: Timestep, state: State) -> tuple[jax.Array, State]:
        """Return Q values ``[T, B, A]`` and the last state."""
        return self._network.apply({"params": params}, timesteps, state)


def is_reference(agent: Agent) -> bool:
    """Whether the agent is one of these, and none of the user's own that inherits from them."""
    agent = agent.agent if isinstance(agent, Pretrained) else agent
    return type(agent) in (PolicyAgent, QAgent)


def epsilon_greedy(key: jax.Array, output: ActorOutput, epsilon: jax.Array) -> ActorOutput:
    """Replace actions by uniformly random ones with probability ``epsilon``.

    Args:
      key: for all B environments.
      output: what ``QAgent.act`` returned. Its Q values tell how many actions there are.
      epsilon: float32 ``[]`` or ``[B]``, one for each environment.
    """
    choose, draw = jax.random.split(key)
    batch, num_actions = output.extras.shape
    explore = jax.random.uniform(choose, (batch,), jnp.float32) < epsilon
    random = jax.random.randint(draw, (batch,), 0, num_actions, jnp.int32)
    return output._replace(action=jnp.where(explore, random, output.action))


def init(network: networks.Network, spec: EnvSpec, state: State, key: jax.Array) -> Params:
    """Return new random parameters of ``network``."""
    # T = B = 1: the sizes of parameters depend on neither.
    return network.init(key, zero_timestep(spec, (1, 1)), state)["params"]


def zero_timestep(spec: EnvSpec, lead: tuple[int, ...]) -> Timestep:
    """Return a timestep of zeros with the leading axes ``lead``."""
    observation = jax.tree.map(
        lambda array: jnp.zeros(lead + tuple(array.shape), array.dtype), spec.observation
    )
    zeros = np.zeros(lead, np.float32)
    return Timestep(observation, zeros, zeros, np.zeros(lead, np.bool_))


def add_time(tree: ArrayTree) -> Any:
    """Add a time axis of length 1 in front of every array."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def check_spec(network: NetworkConfig, spec: EnvSpec, env: str) -> None:
    """Check that the network fits the observations and actions of the environment named ``env``.

    Raises:
      ConfigError: it does not. The message says which network or environment would.
    """
    check_action(spec.action)
    observation = without_action(spec)
    shapes = _shapes(observation)
    for array in jax.tree.leaves(observation):
        _check_channels(array.shape, array.dtype, env)
    if isinstance(observation, dict):
        _check_dict(network, shapes, env)
    elif network.torso != "mlp":
        _check_image(network, shapes[""], env)
    for image in (array for array in jax.tree.leaves(observation) if is_image(array.shape)):
        _check_pixels(network, image.shape, image.dtype, env)
    if network.normalize_observations and not networks.numbers(observation):
        raise ConfigError(
            f"{env} observes no floats: there is nothing to normalize. Set "
            "network.normalize_observations to False, on the command line with "
            "--network.no-normalize-observations; for images there is network.pixels."
        )
    for text in warnings_of_pixels(observation):
        warnings.warn(f"{env}: {text}", stacklevel=2)


def _check_channels(shape: tuple[int, ...], dtype: np.dtype[Any], env: str) -> None:
    # Of floats, it may be something else, which an MLP can learn from.
    if dtype == np.uint8 and has_channels_first(shape):
        raise ConfigError(
            f"{env} observes bytes of shape {shape}, as of an image with its channels or several "
            "frames in front: torsos take [height, width] or [height, width, channels]. Return "
            "the axes in that order, such as by gymnasium.wrappers.TransformObservation; or leave "
            "out the wrapper or option that stacks frames, and set network.frame_stack to 4, on "
            "the command line with --network.frame-stack 4."
        )


def _check_pixels(
    network: NetworkConfig, shape: tuple[int, ...], dtype: np.dtype[Any], env: str
) -> None:
    if network.torso == "mlp" and dtype == np.uint8:
        raise ConfigError(
            f"{env} observes an image {shape}: torso mlp would take its pixels one by one, and "
            "learn next to nothing. Set network.torso to small, shallow or deep, on the command "
            "line with --network.torso."
        )
    if network.torso != "mlp" and network.pixels == "normalized" and dtype != np.uint8:
        raise ConfigError(
            f"{env} observes {dtype}: only pixels of uint8 are normalized. Set network.pixels to "
            "scaled, on the command line with --network.pixels scaled."
        )


def _check_dict(network: NetworkConfig, shapes: Mapping[str, tuple[int, ...]], env: str) -> None:
    if network.frame_stack > 1:
        raise ConfigError(
            f"{env} observes a dict {dict(shapes)}: only a single image can be stacked. Set "
            "network.frame_stack to 1, on the command line with --network.frame-stack 1."
        )
    if network.torso != "mlp" and not any(map(is_image, shapes.values())):
        raise ConfigError(
            f"{env} observes a dict {dict(shapes)}: torso {network.torso} takes images of at least "
            "36 x 36 pixels, and none is there. Set network.torso to mlp, on the command line with "
            "--network.torso mlp."
        )


def _check_image(network: NetworkConfig, shape: tuple[int, ...], env: str) -> None:
    # Stacking makes frames the channels, so only frames without channels can be stacked.
    if is_image(shape) and (network.frame_stack == 1 or len(shape) == 2):
        return
    # An image with channels only has to give up stacking; anything else has to be an MLP's.
    fields, options = "network.frame_stack to 1", "--network.frame-stack 1"
    if not is_image(shape):
        fields, options = f"network.torso to mlp and {fields}", f"--network.torso mlp {options}"
    raise ConfigError(
        f"{env} observes an array of shape {shape}: torso {network.torso} takes images "
        "of at least 36 x 36 pixels, [height, width] or, if network.frame_stack is 1, "
        f"[height, width, channels]. Set {fields}, on the command line with {options}."
    )


def _shapes(observation: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each array of an observation, by its name; "" is that of a single array."""
    return {
        ".".join(str(entry.key) for entry in path): tuple(array.shape)
        for path, array in jax.tree_util.tree_leaves_with_path(observation)
    }
