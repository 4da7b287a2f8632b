"""Converts EnvPool's description of an environment to an ``EnvSpec``.

It reads EnvPool's own specs. The Gymnasium spaces made from them say the same, but with warnings.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import numpy as np

from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, EnvSpec

_PREFIX = "obs:"

# The first version that is known to heed the seed in the environments below.
_HEEDS_SEEDS = (1, 2, 7)
# Found in EnvPool 1.2.5: whatever their seeds, all environments of a batch start alike and stay so
# for as long as they get the same actions, although chance has a part in the originals. Of MyoSuite
# these are the ids in lower case without "Fixed": MyoHandMugRandom-v0 and the like heed their seed.
_DEAF_MYOSUITE = re.compile(r"(myo|motor)(?!.*Fixed).*")
_DEAF = re.compile(
    r"(exit|intersection|lanekeeping|racetrack|racetracklarge|racetrackoval|roundabout|twoway|uturn"
    r"|cvrp|searchandrescue|sokoban)v\d+"
)


def env_spec(native: Any, num_envs: int) -> EnvSpec:
    """Return the ``EnvSpec`` of a supported environment from ``native``, the spec of its pool."""
    arrays = native.state_array_spec
    observation = {k.removeprefix(_PREFIX): _array(arrays[k]) for k in observation_keys(native)}
    if is_atari(native) and native.config.gray_scale:
        # [1, 84, 84]: one stacked frame of one channel. RGB frames, [3, 84, 84], stay as they are.
        observation = {k: dataclasses.replace(v, shape=v.shape[1:]) for k, v in observation.items()}
    (action,) = _actions(native).values()
    return EnvSpec(
        observation=observation if len(observation) > 1 else next(iter(observation.values())),
        # All discrete actions of EnvPool start at 0.
        action=DiscreteSpec(int(action.maximum) + 1) if _is_integer(action) else _box(action),
        num_envs=num_envs,
        frame_skip=getattr(native.config, "frame_skip", 1),
    )


def is_atari(native: Any) -> bool:
    """Whether ``native`` is the spec of an Atari game: only these have sticky actions."""
    return hasattr(native.config, "repeat_action_probability")


def ignores_seed(env_id: str) -> bool:
    """Whether the episodes of an environment are known not to depend on its seed."""
    if tuple(map(int, version("envpool").split(".")[:3])) >= _HEEDS_SEEDS:
        return False
    # Most ids have an alias in other letters or with the name of their family in front.
    name = env_id.rpartition("/")[2]
    return bool(_DEAF_MYOSUITE.fullmatch(name) or _DEAF.fullmatch(name.lower().replace("-", "")))


def native_action(native: Any) -> ArraySpec:
    """Return the shape (without the batch axis) and dtype in which EnvPool takes the action."""
    (action,) = _actions(native).values()
    return ArraySpec(_inner(action.shape), np.dtype(action.dtype))


def observation_keys(native: Any) -> list[str]:
    """Return the keys of the observation in EnvPool's state, in the order that they have there."""
    # A single array is "obs"; the arrays of a dict are "obs:name".
    return [k for k in native.state_array_spec if k == "obs" or k.startswith(_PREFIX)]


def check_supported(env_id: str, native: Any) -> None:
    """Raise ``ValueError`` if ``EnvSpec`` cannot describe the environment."""
    reason = _unsupported(native)
    if reason:
        raise ValueError(
            f"{env_id} {reason}, but only environments with one player, one discrete or bounded "
            "continuous action, and an array or a flat dict of arrays as observation are "
            "supported: choose another, or write a class with the methods of sebulba.types.Env."
        )


def _unsupported(native: Any) -> str | None:
    """Return why the environment is not supported, or None if it is."""
    players = native.config.max_num_players
    if players > 1:
        return f"has up to {players} players"
    actions = _actions(native)
    if len(actions) != 1:
        return f"takes several actions at once ({', '.join(actions)})"
    (action,) = actions.values()
    if _is_integer(action) and _inner(action.shape):
        return "takes a vector of discrete actions"
    # EnvPool states that there is no bound by the largest number of float64.
    if np.max(action.maximum) >= np.finfo(np.float32).max:
        return "takes continuous actions without bounds"
    names = [key.removeprefix(_PREFIX) for key in observation_keys(native)]
    if any("." in name or ":" in name for name in names):
        return f"has nested observations ({', '.join(names)})"
    return None


def _actions(native: Any) -> dict[str, Any]:
    routing = ("env_id", "players.env_id")  # Which environment an action is for.
    return {k: v for k, v in native.action_array_spec.items() if k not in routing}


def _array(native: Any) -> ArraySpec:
    shape, dtype = _inner(native.shape), np.dtype(native.dtype)
    if dtype.kind == "f":
        dtype = np.dtype(np.float32)
    return ArraySpec(shape, dtype)


def _box(native: Any) -> BoxSpec:
    # EnvPool's bounds may be one number for all elements.
    shape = _inner(native.shape)
    low, high = (
        np.broadcast_to(np.asarray(bound, np.float32), shape).copy()
        for bound in (native.minimum, native.maximum)
    )
    return BoxSpec(low, high)


def _is_integer(native: Any) -> bool:
    return bool(np.issubdtype(native.dtype, np.integer))


def _inner(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the shape without EnvPool's axis of players, which is -1."""
    return tuple(n for n in shape if n != -1)
