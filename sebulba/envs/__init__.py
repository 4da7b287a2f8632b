"""Environments: batched, in NumPy, auto-resetting; see ``sebulba.types.Env``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sebulba.envs.base import unknown
from sebulba.envs.catch import Catch
from sebulba.envs.envpool import EnvPoolEnv, environment_ids
from sebulba.envs.memory import Memory
from sebulba.envs.previous_action import PreviousAction, has_action
from sebulba.types import Env

__all__ = ["Catch", "EnvPoolEnv", "Memory", "PreviousAction", "has_action", "make"]

_OURS: Mapping[str, Callable[..., Env]] = {"sebulba/Catch": Catch, "sebulba/Memory": Memory}


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
      env_id: ``sebulba/Catch``, ``sebulba/Memory`` or any single-agent id of EnvPool.
      num_envs: B, at least 1.
      seed: at least 0; the same seed gives the same episodes for the same actions.
      num_threads: threads that step the environments; 0 leaves it to EnvPool. Not used by ours.
      options: of the environment's constructor, or EnvPool's for this id.
      atari_protocol: ``"machado"`` or ``"impala"``; see ``EnvPoolEnv``.

    Raises:
      ValueError: the id or an option is unknown (the message lists close ones), or an argument
        is out of range.
    """
    options = options or {}
    if env_id in _OURS:
        return _make_ours(env_id, num_envs, seed, options)
    ids = environment_ids()
    if env_id not in ids:
        raise unknown("environment", env_id, [*_OURS, *ids])
    return EnvPoolEnv(env_id, num_envs, seed, num_threads, options, atari_protocol)


def _make_ours(env_id: str, num_envs: int, seed: int, options: Mapping[str, Any]) -> Env:
    known = set(inspect.signature(_OURS[env_id]).parameters) - {"num_envs", "seed"}
    for name in options:
        if name not in known:
            raise unknown(f"option of {env_id}", name, known)
    return _OURS[env_id](num_envs, seed, **options)
