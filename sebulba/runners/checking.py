"""The check of an agent of the user's own: at the start of a training, or by itself."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sebulba import algorithms
from sebulba.agents.check import AgentCheck
from sebulba.agents.forms import Needs, check_forms
from sebulba.agents.reference import is_reference
from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.envs.contract import TimestepCheck, check_action
from sebulba.inference import ActorProgram
from sebulba.runners import environments
from sebulba.types import Agent, EnvSpec, MakeEnv, Params, Unroll
from sebulba.validation import ConfigError


def check_given(algorithm: object, make_env: object, optimizer: object = None) -> None:
    """Refuse what cannot be a part of a training; None is what was not given.

    Raises:
      ConfigError: something is of another kind.
    """
    if not isinstance(algorithm, Algorithm | None):
        raise ConfigError(
            f"algorithm is {algorithm!r}: it must be a sebulba.Algorithm, such as "
            "sebulba.algorithms.PPO. Leave it out to take that of the config's class."
        )
    if make_env is not None and not callable(make_env):
        raise ConfigError(
            f"make_env is {make_env!r}: it must be a function make_env(num_envs, seed) that "
            "returns an environment. The name of one goes into the config, as env."
        )
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ConfigError(
            f"optimizer is {optimizer!r}: it must be an optax.GradientTransformation, such as "
            "optax.adam(1e-3)."
        )


def make_check(agent: Agent, spec: EnvSpec, needs: Needs) -> AgentCheck | None:
    """The check of the first unroll; None for an agent of the library, which the tests check.

    Args:
      agent: acts.
      spec: of the environments of one actor.
      needs: what the learner takes from the agent.

    Raises:
      ConfigError: the agent returns other shapes or dtypes than the learner needs.
    """
    if is_reference(agent):
        return None
    check_forms(agent, spec, needs)
    return AgentCheck(agent, spec, needs)


def check_agent(
    agent: Agent,
    config: Config,
    *,
    make_env: MakeEnv | None = None,
    algorithm: Algorithm[Any] | None = None,
) -> None:
    """Check an agent as ``train`` does with the same arguments, without training.

    It acts for one unroll with its first parameters. Then ``unroll`` must reproduce what ``act``
    said, from these parameters and from others; both must zero the recurrent state where ``first``;
    actions must be within the spec of the environment, and shapes and dtypes those that the learner
    of the algorithm needs.

    Args:
      agent: yours. One in which ``unroll`` differs from ``act`` on purpose, as with dropout, has an
        attribute ``is_replayed_exactly`` that is False: the other rules are checked then.
      config: of the training.
      make_env: ``make_env(num_envs, seed)``, instead of ``config.env``.
      algorithm: None takes the registered algorithm of the config's class.

    Raises:
      ConfigError: the agent breaks a rule. The message says which, where, by how much, and what to
        do.
    """
    check_given(algorithm, make_env)
    config.validate()
    algorithm = algorithm or algorithms.of(config)
    make_env = make_env or environments.bare_make_env(config)
    make_env = environments.with_last_action(config, make_env, agent)
    spec = environments.probe(make_env)._replace(num_envs=config.envs_per_actor)
    check_forms(agent, spec, algorithm.needs)
    params = jax.jit(agent.init)(jax.random.key(config.seed))
    unroll = _unroll(agent, params, config, spec, make_env)
    AgentCheck(agent, spec, algorithm.needs)(params, unroll)


def _unroll(
    agent: Agent, params: Params, config: Config, spec: EnvSpec, make_env: MakeEnv
) -> Unroll:
    """What an actor would hand over first."""
    program = ActorProgram(agent, spec, config.unroll_length, jax.local_devices()[:1])
    carry = program.start(params, jax.random.key(config.seed), np.int32(0))
    env = make_env(spec.num_envs, config.seed)
    try:
        timestep, check = env.reset(), TimestepCheck(spec)
        check.reset(timestep)
        for step in range(config.unroll_length):
            on_device, carry = program.step(params, carry, timestep, ())
            action = np.asarray(on_device)
            check_action(action, spec.action, f"in step {step + 1}")
            timestep = env.step(action)
            check.step(timestep)
    finally:
        env.close()
    return Unroll(0, program.finish(carry, timestep)[0])
