"""Environments that other packages make, by the name of the interface that they have.

``gymnasium:ID``
  what ``gymnasium.make`` makes of ID, or ``gymnasium:MODULE:ID``, which imports MODULE first.
``ale:GAME``
  a game of ale-py, with the protocols of ``sebulba.envs.atari``.
``dm_env:MODULE:NAME``
  what the function or class NAME of MODULE returns, with the interface ``dm_env``.
``MODULE:NAME``
  ``NAME(num_envs, seed, **options)``, which returns an ``Env``.

Environments of ``gymnasium`` and ``dm_env`` have one more option, ``processes``: whether each is
stepped in a process of its own.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sebulba.types import Env
from sebulba.validation import ConfigError

_INTERFACES = ("gymnasium", "dm_env", "ale")


def make(
    env_id: str,
    num_envs: int,
    seed: int,
    options: Mapping[str, Any],
    num_threads: int = 0,
    atari_protocol: str = "machado",
) -> Env:
    """Make a batch of environments named as above.

    ``num_threads`` and ``atari_protocol`` are for ``ale:GAME`` only.

    Raises:
      ValueError: there is no such environment, or it cannot be made with these options.
    """
    interface, _, name = env_id.partition(":")
    if is_own(env_id):
        make_own = _named(env_id)
        _check_options(env_id, make_own, options)
        found: Env = make_own(num_envs, seed, **options)
        return found
    import gymnasium

    try:
        if interface == "ale":
            from sebulba.envs.ale import AleEnv

            return AleEnv(name, num_envs, seed, num_threads, options, atari_protocol)
        return _of_gymnasium(interface, name, num_envs, seed, dict(options))
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ValueError(
            f"{env_id} cannot be made with env_options {dict(options)} ({error}): install what it "
            "needs, and give each option the type that it has there."
        ) from error


def _check_options(env_id: str, make_own: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that a function does not take, before an error could come from inside it."""
    try:
        signature = inspect.signature(make_own)
    except ValueError:  # What is written in C need not say.
        return
    try:
        signature.bind(0, 0, **options)
    except TypeError as error:
        raise ConfigError(
            f"{env_id} cannot be made with env_options {dict(options)} ({error}): it is called "
            f"with (num_envs, seed, **env_options), and takes {signature}."
        ) from error


def is_own(env_id: str) -> bool:
    """Whether the name is ``MODULE:NAME``, of what a user has written."""
    return ":" in env_id and env_id.partition(":")[0] not in _INTERFACES


def _of_gymnasium(
    interface: str, name: str, num_envs: int, seed: int, options: dict[str, Any]
) -> Env:
    from sebulba.envs.gymnasium import GymnasiumEnv

    _find_modules_here()
    processes = bool(options.pop("processes", False))
    if interface == "gymnasium":
        return GymnasiumEnv(name, num_envs, seed, options, processes)
    from sebulba.envs.dm_env import DmEnv

    make = partial(DmEnv, _named(name, "dm_env:"), options)
    return GymnasiumEnv(make, num_envs, seed, processes=processes)


def _named(path: str, prefix: str = "") -> Callable[..., Any]:
    """``module:name``, imported; ``prefix`` comes before it in the name of the environment."""
    module, _, name = path.rpartition(":")
    _find_modules_here()
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"environment {prefix + path!r} cannot be found ({error}): write it as "
            f"{prefix}module:name, and start from the directory that holds the module, or install "
            "it."
        ) from error
    return found


def _find_modules_here() -> None:
    """Find modules in the current directory too, as the last."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
