"""Batched environments in NumPy, which reset themselves; see ``sebulba.types.Env``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sebulba.envs import outside
from sebulba.envs.base import unknown
from sebulba.envs.catch import Catch
from sebulba.envs.check import EnvReport, check_env
from sebulba.envs.contract import check_spec
from sebulba.envs.envpool import EnvPoolEnv, environment_ids
from sebulba.envs.gymnasium import GymnasiumEnv
from sebulba.envs.memory import Memory
from sebulba.envs.previous_action import PreviousAction, has_action
from sebulba.types import Env, EnvSpec, MakeEnv
from sebulba.validation import ConfigError

__all__ = [
    "Catch",
    "EnvPoolEnv",
    "EnvReport",
    "GymnasiumEnv",
    "Memory",
    "PreviousAction",
    "check_env",
    "has_action",
    "make",
    "maker",
    "probe",
    "register",
]

_REGISTERED: dict[str, Callable[..., Env]] = {"sebulba/Catch": Catch, "sebulba/Memory": Memory}


def register(env_id: str, make_env: Callable[..., Env]) -> None:
    """Register an environment, so that ``make`` finds it by the name ``env_id``.

    Args:
      env_id: its name in ``Config.env`` and ``--env``. It replaces one of the same name.
      make_env: ``make_env(num_envs, seed, **options)``, a class or a function that returns an
        ``Env``. The names of its further parameters are the options of the environment.
    """
    _REGISTERED[env_id] = make_env


def make(
    env_id: str,
    num_envs: int,
    *,
    seed: int,
    num_threads: int = 0,
    options: Mapping[str, Any] | None = None,
    atari_protocol: str = "machado",
) -> Env:
    """Make a batch of ``num_envs`` environments.

    Args:
      env_id: ``sebulba/Catch``, ``sebulba/Memory``, a name given to ``register``, any
        single-agent id of EnvPool, or one with a prefix: ``gymnasium:ID``, ``ale:GAME``,
        ``dm_env:MODULE:NAME`` or ``MODULE:NAME``; see ``sebulba.envs.outside``.
      num_envs: B, at least 1.
      seed: at least 0. With the same seed, the same actions give the same episodes.
      num_threads: threads that step the environments of EnvPool and ale-py; 0 for their default.
      options: keyword arguments of what makes the environment, or EnvPool's options for this id.
      atari_protocol: ``"machado"`` or ``"impala"``; see ``EnvPoolEnv``.

    Raises:
      ValueError: the id or an option is unknown (the message lists similar ones), or an argument
        is out of range.
    """
    options = options or {}
    # Registered names come first, so that they work without importing EnvPool.
    if env_id in _REGISTERED:
        return _make_registered(env_id, num_envs, seed, options)
    if ":" in env_id:
        return outside.make(env_id, num_envs, seed, options, num_threads, atari_protocol)
    ids = environment_ids()
    if env_id not in ids:
        raise unknown("environment", env_id, [*_REGISTERED, *ids])
    return EnvPoolEnv(env_id, num_envs, seed, num_threads, options, atari_protocol)


def maker(
    env_id: str,
    options: Mapping[str, Any],
    atari_protocol: str = "machado",
    num_threads: int = 0,
) -> MakeEnv:
    """``make`` with these arguments, which raises ``ConfigError`` where they cannot work."""

    def make_env(num_envs: int, seed: int) -> Env:
        try:
            return make(
                env_id,
                num_envs,
                seed=seed,
                num_threads=num_threads,
                options=options,
                atari_protocol=atari_protocol,
            )
        except (TypeError, RuntimeError, ValueError) as error:
            # What a user's own code raises needs its traceback; the library's own errors do not.
            if isinstance(error, ConfigError) or outside.is_own(env_id):
                raise
            if isinstance(error, ValueError):
                raise ConfigError(str(error)) from error
            raise ConfigError(
                f"{env_id} cannot be made with env_options {options} ({error}): each must have the "
                "type that the environment wants. Set env_options, on the command line with "
                "--env-options."
            ) from error

    return make_env


def probe(make_env: MakeEnv) -> EnvSpec:
    """The spec of a batch of one environment, which is made and closed for that.

    Raises:
      ConfigError: the environment says in its spec what is no spec.
    """
    env = make_env(1, 0)
    try:
        # Others ask for the number that they need, and may be the only ones to get it.
        check_spec(env.spec)
        return env.spec
    finally:
        env.close()


def _make_registered(env_id: str, num_envs: int, seed: int, options: Mapping[str, Any]) -> Env:
    # Checked here, because the TypeError of a call would not say which options there are.
    known = set(inspect.signature(_REGISTERED[env_id]).parameters) - {"num_envs", "seed"}
    for name in options:
        if name not in known:
            raise unknown(f"option of {env_id}", name, known)
    return _REGISTERED[env_id](num_envs, seed, **options)
