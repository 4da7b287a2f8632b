"""From a config to the agent and the learner of its algorithm."""

from __future__ import annotations

import optax

from sebulba import distributions
from sebulba.agent import PolicyAgent, QAgent, epsilon_greedy
from sebulba.config import Config, ConfigError, R2D2Config, VTraceConfig
from sebulba.inference import Exploration, epsilon_ladder
from sebulba.learners.base import Learner
from sebulba.learners.r2d2 import R2D2Learner
from sebulba.learners.vtrace import VTraceLearner
from sebulba.topology import Topology
from sebulba.types import Agent, EnvSpec

CONFIGS: dict[str, type[Config]] = {"R2D2Config": R2D2Config, "VTraceConfig": VTraceConfig}
"""The config class of every algorithm, by name."""


def make_agent(config: Config, spec: EnvSpec, *, greedy: bool = False) -> Agent:
    """The reference agent for ``config``; ``greedy`` takes the best action, for evaluation.

    R2D2's takes random actions with ``config.evaluation_epsilon`` where it is not greedy;
    ``make_exploration`` is for training.

    Raises:
      ConfigError: the network does not fit the observation.
    """
    _check_observation(config, spec)
    if isinstance(config, R2D2Config):
        try:
            return QAgent(config.network, spec, 0.0 if greedy else config.evaluation_epsilon)
        except ValueError as error:
            raise ConfigError(f"{config.env}: {error}") from error
    return PolicyAgent(config.network, spec, _distribution(config, spec), greedy)


def make_learner(
    config: Config,
    agent: Agent,
    spec: EnvSpec,
    optimiser: optax.GradientTransformation,
    topology: Topology,
) -> Learner:
    """The learner of ``config``'s algorithm, for the reference agent or one like it."""
    if isinstance(config, VTraceConfig):
        return VTraceLearner(config, agent, _distribution(config, spec), optimiser, topology)
    if isinstance(config, R2D2Config):
        return R2D2Learner(config, agent, spec, optimiser, topology)
    raise TypeError(f"{type(config).__name__} has no learner: it must be one of {sorted(CONFIGS)}")


def make_exploration(config: Config, num_envs: int) -> Exploration | None:
    """How the ``num_envs`` environments of all hosts explore; None where the policy does."""
    if not isinstance(config, R2D2Config):
        return None
    ladder = epsilon_ladder(num_envs, config.epsilon_base, config.epsilon_alpha)
    return Exploration(epsilon_greedy, ladder)


def _distribution(config: Config, spec: EnvSpec) -> distributions.Distribution:
    try:
        return distributions.make(spec.action, config.network.squash)
    except ValueError as error:
        raise ConfigError(f"{error} (--network.squash)") from error


def _check_observation(config: Config, spec: EnvSpec) -> None:
    observation = spec.observation
    if isinstance(observation, dict) and set(observation) == {"observation", "action"}:
        observation = observation["observation"]
    shapes = (
        {name: tuple(array.shape) for name, array in observation.items()}
        if isinstance(observation, dict)
        else tuple(observation.shape)
    )
    network = config.network
    if isinstance(shapes, dict):
        if network.torso != "mlp" or network.frame_stack > 1:
            raise ConfigError(
                f"{config.env} observes a dict {shapes}: only torso mlp with frame_stack 1 takes "
                "that. Set --network.torso mlp --network.frame-stack 1."
            )
        return
    if network.torso == "mlp":
        return
    rank = 2 if network.frame_stack > 1 else len(shapes)
    if len(shapes) != rank or rank not in (2, 3) or min(shapes[:2]) < 36:
        raise ConfigError(
            f"{config.env} observes an array of shape {shapes}: torso {network.torso} takes images "
            "of at least 36 x 36 pixels, [height, width] or, with --network.frame-stack 1, "
            "[height, width, channels]. Set --network.torso mlp --network.frame-stack 1."
        )
