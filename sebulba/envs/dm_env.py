"""Environments with the interface ``dm_env`` (Muldal et al., 2019) as Gymnasium's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

_SEEDS = ("seed", "random_state", "random")


class DmEnv(gymnasium.Env[Any, Any]):
    """One environment of ``dm_env``; ``GymnasiumEnv`` makes batches of them.

    An episode is terminated if its last discount is 0, and truncated otherwise. Other discounts
    than 0 and 1 are not passed on. Strings and empty arrays in observations are left out. An action
    that is a dict of whole numbers becomes several discrete ones, in the order of the dict.

    Args:
      make: ``make(**options)`` returns a ``dm_env.Environment``. If it has a parameter ``seed``,
        ``random_state`` or ``random``, that gets the seed, for which it is called once more.
      options: keyword arguments of ``make``.

    Raises:
      ValueError: a spec is of a kind that has no space.
    """

    def __init__(
        self, make: Callable[..., dm_env.Environment], options: Mapping[str, Any] | None = None
    ) -> None:
        self._make, self._options = make, dict(options or {})
        self._env = make(**self._options)
        self.observation_space = _space(self._env.observation_spec())
        self._action_spec = self._env.action_spec()
        self.action_space = _action_space(self._action_spec)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        parameters = inspect.signature(self._make).parameters
        names = [name for name in _SEEDS if name in parameters and name not in self._options]
        if seed is not None and names:
            self._env.close()
            self._env = self._make(**self._options, **{names[0]: seed})
        return _native(self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        timestep = self._env.step(_native_action(self._action_spec, action))
        terminated = timestep.last() and timestep.discount == 0
        reward = float(timestep.reward or 0)
        truncated = timestep.last() and not terminated
        return _native(timestep.observation), reward, terminated, truncated, {}

    def close(self) -> None:
        self._env.close()


def _action_space(spec: Any) -> spaces.Space[Any]:
    if not isinstance(spec, Mapping):
        return _space(spec)
    # As of DeepMind Lab. Of the names, the order is kept.
    if not all(map(_is_one_choice, spec.values())):
        raise ValueError(
            f"the action is {dict(spec)!r}: in a dict, each must be a single whole number with "
            "bounds. Wrap the environment to give it one array of numbers."
        )
    bounds = [(int(part.minimum), int(part.maximum)) for part in spec.values()]
    sizes = np.array([high - low + 1 for low, high in bounds])
    return spaces.MultiDiscrete(sizes, dtype=np.int64, start=np.array([low for low, _ in bounds]))


def _is_one_choice(spec: Any) -> bool:
    if not isinstance(spec, specs.BoundedArray):
        return False
    return not spec.shape and bool(np.issubdtype(spec.dtype, np.integer))


def _native_action(spec: Any, action: Any) -> Any:
    if isinstance(spec, Mapping):
        parts = zip(spec.items(), action, strict=True)
        return {name: np.asarray(number, part.dtype) for (name, part), number in parts}
    return np.asarray(action, getattr(spec, "dtype", None))


def _space(spec: Any) -> spaces.Space[Any]:
    match spec:
        case Mapping():
            inner = {name: _space(part) for name, part in spec.items() if not _is_text(part)}
            return spaces.Dict(inner)
        case list() | tuple():
            return spaces.Tuple([_space(part) for part in spec])
        case specs.DiscreteArray():
            return spaces.Discrete(int(spec.num_values), start=0)
        case specs.BoundedArray() if np.issubdtype(spec.dtype, np.integer) and _few(spec):
            low = np.broadcast_to(spec.minimum, spec.shape)
            sizes = np.broadcast_to(spec.maximum, spec.shape).astype(np.int64) - low + 1
            if not spec.shape:
                return spaces.Discrete(int(sizes), start=int(low))
            return spaces.MultiDiscrete(sizes, dtype=np.int64, start=low.astype(np.int64))
        case specs.BoundedArray():
            low, high = (
                np.broadcast_to(bound, spec.shape).astype(spec.dtype)
                for bound in (spec.minimum, spec.maximum)
            )
            return spaces.Box(low, high, dtype=spec.dtype)
        case specs.Array() if not _is_text(spec):
            low, high = _widest(spec.dtype)
            return spaces.Box(low, high, spec.shape, spec.dtype)
    raise ValueError(
        f"a spec is {spec!r}: it must be an array of dm_env.specs, or a dict, list or tuple "
        "of them. Wrap the environment to give it one."
    )


def _few(spec: specs.BoundedArray) -> bool:
    """Whether its numbers are choices, and not pixels or counts."""
    # As floats, of which no difference overflows.
    sizes = np.float64(spec.maximum) - np.float64(spec.minimum)
    return spec.dtype != np.uint8 and bool(np.all(sizes < 1000))


def _widest(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if np.issubdtype(dtype, np.bool_):
        return 0, 1
    if np.issubdtype(dtype, np.floating):
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _is_text(spec: Any) -> bool:
    return isinstance(spec, specs.StringArray) or getattr(spec, "dtype", None) == np.object_


def _native(observation: Any) -> Any:
    """An observation as its space has it: tuples in place of lists."""
    if isinstance(observation, Mapping):
        return {name: _native(part) for name, part in observation.items()}
    if isinstance(observation, list | tuple):
        return tuple(map(_native, observation))
    return observation
