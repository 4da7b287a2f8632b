"""Helpers that the environments of this package share."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_FAR = 10.0
"""At least how far from 0 the range of an action goes on a side without a bound."""


def check_num_envs(num_envs: int) -> int:
    """Return ``num_envs``. Raise ``ValueError`` if it is below 1."""
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, but must be at least 1: ask for one or more.")
    return num_envs


def cpu_cores() -> int:
    """CPU cores that this process may use."""
    # The affinity respects taskset and the cpusets of containers; cpu_count() does not.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class EpisodeClock:
    """The time in each of B episodes that all have the same length, with auto-reset.

    Attributes:
      length: steps of an episode, which is one less than its timesteps.
      time: int64 ``[B]``, 0 at the first timestep of an episode and ``length`` at the last.
    """

    def __init__(self, num_envs: int, length: int) -> None:
        self.length = length
        self.time = np.full(check_num_envs(num_envs), length)

    def end(self) -> None:
        """End all episodes, so that the next tick starts new ones."""
        self.time = np.full_like(self.time, self.length)

    def tick(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Go to the next timestep, and return bool ``[B]`` whether it is the first and the last."""
        # The step after the last timestep is the reset: it takes the time to 0.
        first = self.time == self.length
        self.time = np.where(first, 0, self.time + 1)
        return first, self.time == self.length


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name, which lists known names that are similar."""
    by_lower = {k.lower(): k for k in known}  # "cartpole-v1" is meant to be "CartPole-v1".
    close = [by_lower[k] for k in difflib.get_close_matches(name.lower(), by_lower, n=5)]
    if not by_lower:
        remedy = "it has none"
    elif close:
        remedy = f"close ones are {', '.join(close)}"
    else:
        remedy = f"known: {_some(by_lower.values())}"
    return ValueError(f"unknown {kind} {name!r}: {remedy}.")


def _some(names: Iterable[str], limit: int = 10) -> str:
    names = sorted(names)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def map_arrays(convert: Callable[..., Any], *observations: Any) -> Any:
    """Call ``convert`` on each array of observations of one structure: arrays or nested dicts."""
    # Not by jax.tree, so that environments run where there is no JAX.
    if not isinstance(observations[0], Mapping):
        return convert(*observations)
    return {
        name: map_arrays(convert, *(observation[name] for observation in observations))
        for name in observations[0]
    }


def named_arrays(observation: Any, name: str = "") -> list[tuple[str, Any]]:
    """Each array of an observation, in the order of its name, with it: "" or "['a']['b']"."""
    if not isinstance(observation, Mapping):
        return [(name, observation)]
    return [
        named
        for key in sorted(observation)
        for named in named_arrays(observation[key], f"{name}[{key!r}]")
    ]


def finite_bounds(low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds as float64, with numbers of a usual size in place of those that are infinite."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    # Far from the other bound too, if there is one.
    known_low, known_high = (np.where(np.isinf(bound), 0, bound) for bound in (low, high))
    least = np.minimum(-_FAR, known_high - 2 * np.abs(known_high))
    most = np.maximum(_FAR, known_low + 2 * np.abs(known_low))
    return np.where(np.isinf(low), least, low), np.where(np.isinf(high), most, high)


def warnings_of_pixels(observation: Any) -> list[str]:
    """What to say of the specs of an observation that are probably images without their shape."""
    return [
        f"The observation{path} is {told.shape[0]:,} bytes in a row, as of an image that was made "
        "flat: an MLP learns very slowly from those. Return the image as it is, [height, width, "
        "channels], and set network.torso to small, shallow or deep."
        for path, told in named_arrays(observation)
        if len(told.shape) == 1 and told.dtype == np.uint8 and told.shape[0] >= 1000
    ]
