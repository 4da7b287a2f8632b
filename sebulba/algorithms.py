"""From a config to the agent and the learner of its algorithm."""

from __future__ import annotations

from typing import Literal

import numpy as np
import optax

from sebulba import distributions, envs
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

Acts = Literal["training", "evaluating", "greedily"]


def make_agent(config: Config, spec: EnvSpec, *, acts: Acts = "training") -> Agent:
    """The reference agent for ``config``.

    V-trace's samples from its policy, unless it acts ``greedily``. R2D2's takes the best action,
    but when ``evaluating`` a random one with ``config.evaluation_epsilon``; in training,
    ``make_exploration`` adds the random ones.

    Raises:
      ConfigError: the network does not fit the observation.
    """
    _check_observation(config, spec)
    if isinstance(config, R2D2Config):
        epsilon = config.evaluation_epsilon if acts == "evaluating" else 0.0
        try:
            return QAgent(config.network, spec, epsilon)
        except ValueError as error:
            raise ConfigError(f"{config.env}: {error}") from error
    distribution = _distribution(config, spec)
    return PolicyAgent(config.network, spec, distribution, greedy=acts == "greedily")


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


def num_updates(config: Config, num_hosts: int) -> int:
    """Updates that ``config.total_steps`` take, were every step counted (auto-resets are not)."""
    turns = -(-config.total_steps // (config.unroll_length * config.batch_size * num_hosts))
    if not isinstance(config, R2D2Config):
        return turns
    # The first unrolls of every environment complete no sequence.
    unrolls = turns * config.batch_size - config.replay.min_size
    return max(1, round(unrolls * config.replay.ratio / config.sequences_per_update))


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
    if envs.has_action(spec):
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
        colour = len(shapes) == 3 and min(shapes[:2]) >= 36
        raise ConfigError(
            f"{config.env} observes an array of shape {shapes}: torso {network.torso} takes images "
            "of at least 36 x 36 pixels, [height, width] or, with --network.frame-stack 1, "
            "[height, width, channels]. Set "
            + ("" if colour else "--network.torso mlp ")
            + "--network.frame-stack 1."
        )
    if network.pixels == "standardised" and observation.dtype != np.uint8:
        raise ConfigError(
            f"{config.env} observes {observation.dtype}: only pixels of uint8 are standardised. "
            "Set --network.pixels scaled."
        )
