"""Environments that other packages make, by the name of the interface that they have.

``gymnasium:ID``
  what ``gymnasium.make`` makes of ID, or ``gymnasium:MODULE:ID``, which imports MODULE first.
``dm_env:MODULE:NAME``
  what the function or class NAME of MODULE returns, with the interface ``dm_env``.
``MODULE:NAME``
  ``NAME(num_envs, seed, **options)``, which returns an ``Env``.

With the first two, the option ``processes`` steps each environment in a process of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sebulba.types import Env


def make(env_id: str, num_envs: int, seed: int, options: Mapping[str, Any]) -> Env:
    """Make a batch of environments named as above.

    Raises:
      ValueError: there is no such environment, or it cannot be made with these options.
    """
    interface, _, name = env_id.partition(":")
    if interface not in ("gymnasium", "dm_env"):
        found: Env = _named(env_id)(num_envs, seed, **options)
        return found
    import gymnasium

    from sebulba.envs.gymnasium import GymnasiumEnv

    own = dict(options)
    processes = bool(own.pop("processes", False))
    try:
        if interface == "gymnasium":
            return GymnasiumEnv(name, num_envs, seed, own, processes)
        from sebulba.envs.dm_env import DmEnv

        return GymnasiumEnv(partial(DmEnv, _named(name), own), num_envs, seed, processes=processes)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ValueError(
            f"{env_id} cannot be made with env_options {dict(options)} ({error}): install what it "
            "needs, and give each option the type that it has there."
        ) from error


def _named(path: str) -> Callable[..., Any]:
    """``module:name``, imported. Modules in the current directory are found too, as the last."""
    module, _, name = path.rpartition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f"environment {path!r} cannot be found ({error}): write it as module:name, and start "
            "from the directory that holds the module, or install it."
        ) from error
    return found
