"""The environments of a run: the one that its config names, or the user's own."""

from __future__ import annotations

import jax

from sebulba import envs
from sebulba.config import Config
from sebulba.envs.base import cpu_cores, map_arrays
from sebulba.types import Agent, ArraySpec, Env, EnvSpec, MakeEnv
from sebulba.validation import ConfigError

OWN_ENV = "(make_env)"
"""The value of ``Config.env`` in a run whose environments were given as ``make_env``."""


def default_make_env(config: Config, num_actors: int = 1) -> MakeEnv:
    """Makes the environments that ``config`` names, with the last action for an LSTM of its own.

    Args:
      config: names the environment and its options.
      num_actors: actors that share this host's CPU cores, unless ``config.env_threads`` is set.

    Raises:
      ConfigError: the run was trained in environments of the user's own.
    """
    return with_last_action(config, bare_make_env(config, num_actors))


def bare_make_env(config: Config, num_actors: int = 1) -> MakeEnv:
    """As ``default_make_env``, without the last action."""
    if config.env == OWN_ENV:
        raise ConfigError(
            "env is '(make_env)': the run was trained in environments of your own, which only "
            "Python can make. Give make_env to sebulba.train or sebulba.evaluate_run again."
        )
    num_threads = env_threads(config, num_actors)
    return envs.maker(config.env, config.env_options, config.atari_protocol, num_threads)


def env_threads(config: Config, num_actors: int) -> int:
    """Threads of each actor's EnvPool if ``num_actors`` actors share this host's CPU cores."""
    return config.env_threads or max(1, cpu_cores() // max(1, num_actors))


def with_last_action(config: Config, make_env: MakeEnv, agent: Agent | None = None) -> MakeEnv:
    """Adds the last action to the observations if the agent asks for it.

    An agent of the user's own does so by an attribute ``observes_last_action`` that is True. What
    an algorithm makes from ``config`` (None) does if its network has an LSTM. Environments that
    have the last action already are left as they are.
    """
    of_config = config.network.core == "lstm"
    asks = of_config if agent is None else getattr(agent, "observes_last_action", False)
    if not asks:
        return make_env

    def make(num_envs: int, seed: int) -> Env:
        env = make_env(num_envs, seed)
        return env if envs.has_action(env.spec) else envs.PreviousAction(env)

    return make


def probe(make_env: MakeEnv) -> EnvSpec:
    """The spec of a batch of one environment, which is made and closed for that.

    Its dtypes are those that JAX has.

    Raises:
      ConfigError: the environment says in its spec what is no spec.
    """
    return with_dtypes_of_jax(envs.probe(make_env))


def with_dtypes_of_jax(spec: EnvSpec) -> EnvSpec:
    """``spec`` with the dtypes that JAX has: float32 in place of float64, unless it is enabled.

    What the environment returns becomes the same when it goes to a device.
    """

    def converted(told: ArraySpec) -> ArraySpec:
        return ArraySpec(tuple(told.shape), jax.dtypes.canonicalize_dtype(told.dtype))

    return spec._replace(observation=map_arrays(converted, spec.observation))
