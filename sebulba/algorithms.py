"""One record for each algorithm, with all that is specific to it: no other file asks which it is.

An algorithm of your own is one more record. Either give it to ``sebulba.train(config,
algorithm=...)``, or ``register`` it: then its configs are enough, on the command line too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import optax

from sebulba.agents import distributions
from sebulba.agents.forms import Needs
from sebulba.agents.reference import PolicyAgent, QAgent, check_spec, epsilon_greedy
from sebulba.config import Config, build, whole_unrolls
from sebulba.devices.topology import Topology
from sebulba.inference.exploration import Exploration, epsilon_ladder, linear_epsilon
from sebulba.learners import r2d2
from sebulba.learners.base import Learner
from sebulba.learners.epochs import fit_minibatches
from sebulba.learners.ppo import PPOConfig, PPOLearner
from sebulba.learners.pqn import PQNConfig, PQNLearner
from sebulba.learners.r2d2 import R2D2Config, R2D2Learner
from sebulba.learners.vtrace import VTraceConfig, VTraceLearner
from sebulba.types import Agent, EnvSpec
from sebulba.validation import ConfigError

C = TypeVar("C", bound=Config)
Acts = Literal["training", "evaluating", "greedily"]
"""What an agent is made for, which may change how it chooses actions."""
MakeLearner = Callable[[C, Agent, EnvSpec, optax.GradientTransformation, Topology], Learner]


def make_policy_agent(config: Config, spec: EnvSpec, acts: Acts = "training") -> Agent:
    """The reference actor-critic. It samples from its policy, or takes its mode if ``greedily``.

    Raises:
      ConfigError: the network does not fit the observation or the action.
    """
    check_spec(config.network, spec, config.env)
    distribution = distributions.make(spec.action, config.network.squash)
    return PolicyAgent(config.network, spec, distribution, greedy=acts == "greedily")


def fit_unrolls(config: C, num_learners: int) -> C:
    """Rounds ``envs_per_actor`` up, so that each learner gets equal parts of every unroll.

    ``batch_size`` grows with it: a turn keeps its number of unrolls.
    """
    # Microbatches are cut from each unroll too, so a learner's part must divide by their number.
    envs = _round_up(config.envs_per_actor, num_learners * (config.num_microbatches or 1))
    return dataclasses.replace(config, envs_per_actor=envs, batch_size=whole_unrolls(config) * envs)


@dataclasses.dataclass(frozen=True)
class Algorithm(Generic[C]):
    """All that is specific to one algorithm. The defaults suit an actor-critic like V-trace's.

    Attributes:
      name: its name in saved configs.
      config_class: the class of its configs, a subclass of ``Config``.
      make_learner: ``(config, agent, spec, optimizer, topology)`` -> the learner.
      make_agent: ``(config, spec, acts)`` -> the agent for ``acts``.
      make_exploration: ``(config, num_envs)`` -> how the ``num_envs`` environments of all hosts
        explore; None if the policy explores by itself.
      unrolls_per_turn: ``(config)`` -> unrolls that the learner takes on each host in one turn.
      fit: ``(config, num_learners)`` -> the config with its sizes rounded up, so that they divide
        over ``num_learners`` devices of a host; an equal config if they do already.
      steps_per_update: ``(config)`` -> agent steps of one host for each update, in the long run.
      steps_before_learning: ``(config, num_actors)`` -> agent steps of a host with ``num_actors``
        actors before its first update.
      for_trial: ``(config)`` -> one that starts learning as soon as possible, to measure its speed.
      needs: what the learner takes from an agent, by which agents of the user's own are checked.
        "policy": extras with the fields of ``Behavior``, and outputs with those of ``PolicyValue``;
        "values": Q values in both; "any": what it likes.
    """

    name: str
    config_class: type[C]
    make_learner: MakeLearner[C]
    make_agent: Callable[[C, EnvSpec, Acts], Agent] = make_policy_agent
    make_exploration: Callable[[C, int], Exploration | None] = lambda config, num_envs: None
    unrolls_per_turn: Callable[[C], int] = whole_unrolls
    fit: Callable[[C, int], C] = fit_unrolls
    steps_per_update: Callable[[C], float] = lambda config: config.batch_size * config.unroll_length
    steps_before_learning: Callable[[C, int], int] = lambda config, num_actors: 0
    for_trial: Callable[[C], C] = lambda config: config
    needs: Needs = "any"

    def fits(self, config: C, num_learners: int) -> bool:
        """Whether the sizes of ``config`` divide over ``num_learners`` devices of a host."""
        return self.fit(config, num_learners) == config


def make_q_agent(
    config: R2D2Config | PQNConfig, spec: EnvSpec, acts: Acts = "training", dueling: bool = True
) -> Agent:
    """The reference agent of R2D2 and PQN, which takes the action with the largest Q value.

    For ``evaluating`` it takes a random one with probability ``config.evaluation_epsilon``. In
    training it never does, since ``make_exploration`` adds random actions.

    Raises:
      ConfigError: the network does not fit the observation or the action.
    """
    check_spec(config.network, spec, config.env)
    epsilon = config.evaluation_epsilon * (acts == "evaluating")
    try:
        return QAgent(config.network, spec, epsilon, dueling)
    except ValueError as error:
        raise ConfigError(f"{config.env}: {error}") from error


def _explore_by_ladder(config: R2D2Config, num_envs: int) -> Exploration:
    ladder = epsilon_ladder(num_envs, config.epsilon_base, config.epsilon_alpha)
    return Exploration(epsilon_greedy, lambda progress: ladder)


def _explore_by_schedule(config: PQNConfig, num_envs: int) -> Exploration:
    def epsilons(progress: float) -> np.ndarray:
        start, end, until = config.epsilon_start, config.epsilon_end, config.exploration_fraction
        return np.full(num_envs, linear_epsilon(progress, start, end, until), np.float32)

    return Exploration(epsilon_greedy, epsilons)


def _fit_sequences(config: R2D2Config, num_learners: int) -> R2D2Config:
    # Batches are drawn from the replay, so their size does not depend on ``envs_per_actor``.
    size = _round_up(config.batch_size, num_learners * (config.num_microbatches or 1))
    envs = _round_up(config.envs_per_actor, num_learners)
    return dataclasses.replace(config, envs_per_actor=envs, batch_size=size)


def _steps_per_batch(config: R2D2Config) -> float:
    # Once an actor's first sequence is complete, each of its unrolls completes one sequence for
    # each environment, which takes ``unroll_length`` agent steps.
    return config.batch_size / config.replay.samples_per_insert * config.unroll_length


def _small_replay(config: R2D2Config) -> R2D2Config:
    size = config.batch_size
    replay = dataclasses.replace(config.replay, capacity=20 * size, min_size=size)
    return dataclasses.replace(config, replay=replay)


VTRACE = Algorithm("vtrace", VTraceConfig, VTraceLearner, needs="policy")
R2D2 = Algorithm(
    "r2d2",
    R2D2Config,
    R2D2Learner,
    make_agent=make_q_agent,
    make_exploration=_explore_by_ladder,
    unrolls_per_turn=lambda config: 1,
    fit=_fit_sequences,
    steps_per_update=_steps_per_batch,
    steps_before_learning=r2d2.steps_before_learning,
    for_trial=_small_replay,
    needs="values",
)

PPO = Algorithm("ppo", PPOConfig, PPOLearner, fit=fit_minibatches, needs="policy")
PQN = Algorithm(
    "pqn",
    PQNConfig,
    PQNLearner,
    make_agent=partial(make_q_agent, dueling=False),
    make_exploration=_explore_by_schedule,
    fit=fit_minibatches,
    needs="values",
)

_REGISTERED: dict[str, Algorithm[Any]] = {}


def register(algorithm: Algorithm[C]) -> Algorithm[C]:
    """Let ``of`` and ``from_fields`` find ``algorithm``; replaces any other of the same name."""
    _REGISTERED[algorithm.name] = algorithm
    return algorithm


def of(config: C) -> Algorithm[C]:
    """The registered algorithm of exactly this class of config.

    Raises:
      ConfigError: there is none.
    """
    # Not isinstance: a subclass with new fields would silently be trained by its parent's learner,
    # which ignores them.
    for algorithm in _REGISTERED.values():
        if algorithm.config_class is type(config):
            return algorithm
    raise ConfigError(
        f"{type(config).__name__} is the config of no algorithm: it must be one of "
        f"{sorted(known.config_class.__name__ for known in _REGISTERED.values())}. Give train "
        "algorithm=, or register yours with sebulba.algorithms.register."
    )


def from_fields(name: str, fields: dict[str, Any]) -> Config:
    """The config of a saved run, from the name of its algorithm and the fields of its config.

    Raises:
      ConfigError: no registered algorithm has that name, or its config class lacks a field.
    """
    if name not in _REGISTERED:
        raise ConfigError(
            f"algorithm {name!r} is unknown: it must be one of {sorted(_REGISTERED)}. Import the "
            "module that registers it first, or use the version of the library that wrote it."
        )
    return build(_REGISTERED[name].config_class, fields)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


register(VTRACE)
register(R2D2)
register(PPO)
register(PQN)
