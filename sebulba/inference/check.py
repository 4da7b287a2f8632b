"""A check that an environment returns what its spec says."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sebulba.types import EnvSpec, Timestep
from sebulba.validation import ConfigError


def check_timestep(timestep: Timestep, spec: EnvSpec) -> None:
    """Check that ``timestep`` has the structure, shapes and dtypes of ``spec``.

    Dtypes that JAX does not distinguish (such as float64 and float32) are equal here.

    Raises:
      ConfigError: an array differs. The message says which, how it is and how it should be.
    """
    # The actor acts on what the environment returns, but trajectories are stored as the spec says:
    # other dtypes would be converted, and smaller arrays leave zeros around them. So without this
    # check the learner could learn, without any error, from other data than the actor saw.
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
        # Any dtype will do, since agents and learners get float32 in any case.
        _check(name, np.asarray(number, np.float32), (spec.num_envs,), np.float32)


def _check(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    # What JAX makes of a dtype: without its option jax_enable_x64, float64 becomes float32.
    canonical = jax.dtypes.canonicalize_dtype
    if array.shape != shape or canonical(array.dtype) != canonical(dtype):
        raise ConfigError(
            f"the environment's {name} is {array.dtype} {list(array.shape)}, and its spec says "
            f"{np.dtype(dtype)} {list(shape)}: make the one like the other."
        )
