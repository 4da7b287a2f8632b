"""Whether an environment gives what its spec says."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sebulba.types import EnvSpec, Timestep
from sebulba.validation import ConfigError


def check_timestep(timestep: Timestep, spec: EnvSpec) -> None:
    """Refuse a timestep that the learner would see otherwise than the actor does.

    Trajectories are stored as the spec says: other types would be converted on the way, and smaller
    arrays surrounded by zeros. Types that JAX makes one of (float64 and float32) are one here.

    Raises:
      ConfigError: which array differs, how it is and how the spec says it must be.
    """
    specs, tree = jax.tree.flatten(spec.observation)
    arrays, found = jax.tree_util.tree_flatten_with_path(timestep.observation)
    if str(found) != str(tree):
        raise ConfigError(
            f"the environment's observation is {found}, and its spec says {tree}: make the one "
            "like the other."
        )
    for (path, array), told in zip(arrays, specs, strict=True):
        name = f"observation{jax.tree_util.keystr(path)}"
        _check(name, array, (spec.num_envs, *told.shape), told.dtype)
    _check("first", timestep.first, (spec.num_envs,), np.bool_)
    for name, number in (("reward", timestep.reward), ("discount", timestep.discount)):
        # Numbers of any kind: both see them as float32.
        _check(name, np.asarray(number, np.float32), (spec.num_envs,), np.float32)


def _check(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    canonical = jax.dtypes.canonicalize_dtype
    if array.shape != shape or canonical(array.dtype) != canonical(dtype):
        raise ConfigError(
            f"the environment's {name} is {array.dtype} {list(array.shape)}, and its spec says "
            f"{np.dtype(dtype)} {list(shape)}: make the one like the other."
        )
