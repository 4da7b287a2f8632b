"""Converts EnvPool's description of an environment to an ``EnvSpec``.

It reads EnvPool's own specs. The Gymnasium spaces made from them say the same, but with warnings.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from sebulba.envs import vizdoom
from sebulba.types import (
    ActionSpec,
    ArraySpec,
    BoxSpec,
    DiscreteSpec,
    EnvSpec,
    MultiDiscreteSpec,
)

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


MISSION = "mission"
"""The text of MiniGrid and BabyAI: what it is called in the observation and among the options."""


def env_spec(native: Any, num_envs: int, with_mission: bool = False) -> EnvSpec:
    """Return the ``EnvSpec`` of a supported environment from ``native``, the spec of its pool."""
    arrays = native.state_array_spec
    observation = {key: _array(arrays[key]) for key in observation_keys(native, with_mission)}
    if is_atari(native) or is_vizdoom(native):
        # [1, 84, 84]: one stacked frame of one channel. RGB frames, [3, 84, 84], stay as they are.
        observation = {name: _without_one_channel(array) for name, array in observation.items()}
    (action,) = _actions(native).values()
    return EnvSpec(
        observation=nested(observation),
        action=_action(action),
        num_envs=num_envs,
        frame_skip=getattr(native.config, "frame_skip", 1),
        action_names=vizdoom.action_names(native.config) if is_vizdoom(native) else (),
    )


def is_atari(native: Any) -> bool:
    """Whether ``native`` is the spec of an Atari game: only these have sticky actions."""
    return hasattr(native.config, "repeat_action_probability")


def is_vizdoom(native: Any) -> bool:
    """Whether ``native`` is the spec of a ViZDoom scenario: only these combine their buttons."""
    return hasattr(native.config, "use_combined_action")


def ignores_seed(env_id: str) -> bool:
    """Whether the episodes of an environment are known not to depend on its seed."""
    if tuple(map(int, version("envpool").split(".")[:3])) >= _HEEDS_SEEDS:
        return False
    # Most ids have an alias in other letters or with the name of their family in front.
    name = env_id.rpartition("/")[2]
    return bool(_DEAF_MYOSUITE.fullmatch(name) or _DEAF.fullmatch(name.lower().replace("-", "")))


def nested(arrays: Mapping[str, Any]) -> Any:
    """Arrays by their keys in EnvPool's state as one observation: an array, or a dict of them.

    "obs:a:b" and "obs:a.b" are "b" in the dict "a".
    """
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    observation: dict[str, Any] = {}
    for key, array in arrays.items():
        *path, name = re.split("[.:]", key.removeprefix(_PREFIX))
        inner = observation
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = array
    return observation


def native_action(native: Any) -> ArraySpec:
    """Return the shape (without the batch axis) and dtype in which EnvPool takes the action."""
    (action,) = _actions(native).values()
    return ArraySpec(_inner(action.shape), np.dtype(action.dtype))


def observation_keys(native: Any, with_mission: bool) -> list[str]:
    """Return the keys of the observation in EnvPool's state, in the order that they have there."""
    # A single array is "obs"; the arrays of a dict are "obs:name".
    keys = [k for k in native.state_array_spec if k == "obs" or k.startswith(_PREFIX)]
    return [k for k in keys if with_mission or k != _PREFIX + MISSION]


def own_options(native: Any) -> list[str]:
    """Return the options that are not EnvPool's."""
    return [MISSION] if _PREFIX + MISSION in native.state_array_spec else []


def check_supported(env_id: str, native: Any) -> None:
    """Raise ``ValueError`` if ``EnvSpec`` cannot describe the environment."""
    reason = _unsupported(native)
    if reason:
        raise ValueError(
            f"{env_id} {reason}, but only environments with one player and discrete or bounded "
            "continuous actions are supported: choose another, or write a class with the methods "
            "of sebulba.types.Env."
        )


def _unsupported(native: Any) -> str | None:
    """Return why the environment is not supported, or None if it is."""
    players = native.config.max_num_players
    if players > 1:
        return f"has up to {players} players"
    if is_vizdoom(native) and vizdoom.is_for_several(native.config):
        return "is a match of several players"
    actions = _actions(native)
    if len(actions) != 1:
        return f"takes several actions at once ({', '.join(actions)})"
    (action,) = actions.values()
    # EnvPool states that there is no bound by the largest number of float64.
    if np.max(action.maximum) >= np.finfo(np.float32).max:
        return "takes continuous actions without bounds"
    return None


def _actions(native: Any) -> dict[str, Any]:
    routing = ("env_id", "players.env_id")  # Which environment an action is for.
    return {k: v for k, v in native.action_array_spec.items() if k not in routing}


def _array(native: Any) -> ArraySpec:
    shape, dtype = _inner(native.shape), np.dtype(native.dtype)
    if dtype.kind == "f":
        dtype = np.dtype(np.float32)
    return ArraySpec(shape, dtype)


def _without_one_channel(array: ArraySpec) -> ArraySpec:
    is_plane = len(array.shape) == 3 and array.shape[0] == 1
    return dataclasses.replace(array, shape=array.shape[1:]) if is_plane else array


def _action(native: Any) -> ActionSpec:
    if not _is_discrete(native):
        return _box(native)
    # All discrete actions of EnvPool start at 0. Their maximum may be one number for all elements.
    most = np.broadcast_to(native.maximum, _inner(native.shape))
    if most.ndim == 0:
        return DiscreteSpec(int(most) + 1)
    return MultiDiscreteSpec(tuple(int(number) + 1 for number in most))


def _box(native: Any) -> BoxSpec:
    # EnvPool's bounds may be one number for all elements.
    shape = _inner(native.shape)
    low, high = (
        np.broadcast_to(np.asarray(bound, np.float32), shape).copy()
        for bound in (native.minimum, native.maximum)
    )
    return BoxSpec(low, high)


def _is_discrete(native: Any) -> bool:
    # ViZDoom's combined actions are whole numbers of float64.
    return bool(np.issubdtype(native.dtype, np.integer) or native.is_discrete)


def _inner(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the shape without EnvPool's axis of players, which is -1."""
    return tuple(n for n in shape if n != -1)
