"""Gymnasium's spaces as specs, and what they hold as arrays of these specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sebulba.types import ActionSpec, ArraySpec, BoxSpec, DiscreteSpec, MultiDiscreteSpec

Array = np.ndarray[Any, Any]


_MOST_CHOICES = 1000
"""At most so many whole numbers in a row are choices."""


def action_spec(space: Any) -> ActionSpec:
    """The spec of the actions in ``space``.

    A Box of whole numbers with fewer than two axes is choices if all its ranges are small.
    Otherwise, its numbers are rounded.

    Raises:
      ValueError: it has no spec: it is unbounded, or of another kind than those below.
    """
    from gymnasium import spaces

    match space:
        case spaces.Discrete():
            return DiscreteSpec(int(space.n))
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return MultiDiscreteSpec(tuple(map(int, space.nvec)))
        case spaces.MultiBinary() if len(space.shape) == 1:
            return MultiDiscreteSpec((2,) * space.shape[0])
        case spaces.Box() if _has_choices(space):
            sizes = tuple((np.int64(space.high) - np.int64(space.low) + 1).ravel().tolist())
            return MultiDiscreteSpec(sizes) if space.shape else DiscreteSpec(*sizes)
        case spaces.Box() if np.isfinite([space.low, space.high]).all():
            return BoxSpec(space.low.astype(np.float32), space.high.astype(np.float32))
    is_box = isinstance(space, spaces.Box)
    kind = "Box(-1, 1, shape)" if is_box else "MultiDiscrete([2, 3])"
    clipping = "; leave ClipAction out, which takes the bounds away" if is_box else ""
    raise ValueError(
        f"the action space is {space}: it must be Discrete, MultiDiscrete, MultiBinary or a Box "
        "with bounds. Wrap the environment to give it one, such as with "
        f"gymnasium.wrappers.TransformAction(env, func, gymnasium.spaces.{kind}){clipping}."
    )


def native_action(space: Any, action: Array) -> Array:
    """Actions ``[B, ...]`` of the spec, as ``space`` has them."""
    from gymnasium import spaces

    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            action = action + space.start
        case spaces.Box() if _has_choices(space):
            action = action + np.int64(space.low)
        case spaces.Box() if _is_whole(space):
            action = _rounded(space, action)
        case spaces.Box() if space.dtype == np.float64:
            # As one of float32, a bound may lie beyond itself.
            action = np.clip(action, space.low, space.high)
    return np.asarray(action).astype(space.dtype, copy=False)


def _rounded(box: Any, numbers: Array) -> Array:
    numbers = np.rint(np.asarray(numbers, np.float64))
    above, below = numbers >= box.high, numbers <= box.low
    # Only what is between them is cast: the largest whole numbers lie beyond themselves as floats.
    between = np.where(above | below, 0, numbers).astype(box.dtype)
    return np.where(above, box.high, np.where(below, box.low, between))


def _has_choices(box: Any) -> bool:
    if not _is_whole(box) or len(box.shape) > 1:
        return False
    # As floats, of which no difference overflows.
    return bool(np.all(np.float64(box.high) - np.float64(box.low) < _MOST_CHOICES))


def _is_whole(box: Any) -> bool:
    return bool(np.issubdtype(box.dtype, np.integer) or box.dtype == np.bool_)


def observation_spec(space: Any) -> Any:
    """The spec of the observations in ``space``; None if it is of texts or empty: left out.

    Raises:
      ValueError: it is of another kind than those below.
    """
    from gymnasium import spaces

    match space:
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete() if 0 in space.shape:
            return None
        case spaces.Box() | spaces.MultiBinary():
            dtype = np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
            return ArraySpec(tuple(space.shape), np.dtype(dtype))
        case spaces.Discrete():
            return ArraySpec((int(space.n),), np.dtype(np.float32))
        case spaces.MultiDiscrete():
            return ArraySpec((int(space.nvec.sum()),), np.dtype(np.float32))
        case spaces.Dict() | spaces.Tuple():
            inner = {name: observation_spec(part) for name, part in _parts(space).items()}
            return {name: spec for name, spec in inner.items() if spec is not None}
        case spaces.Text():
            return None
    raise ValueError(
        f"an observation space is {space}: it must be Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or a Tuple of them. Wrap the environment with "
        "gymnasium.wrappers.TransformObservation."
    )


def observation(space: Any, spec: Any, native: Any) -> Any:
    """Observations of B environments in ``space`` as arrays ``[B, ...]`` of its ``spec``.

    Numbers of a kind (Discrete and MultiDiscrete) become one-hot vectors. The arrays are copies.
    """
    from gymnasium import spaces

    match space:
        case spaces.Discrete():
            return _one_hot(np.asarray(native) - space.start, int(space.n))
        case spaces.MultiDiscrete():
            numbers = (np.asarray(native) - space.start).reshape(len(native), -1)
            sizes = space.nvec.ravel()
            vectors = [_one_hot(numbers[:, i], int(size)) for i, size in enumerate(sizes)]
            return np.concatenate(vectors, axis=1)
        case spaces.Dict() | spaces.Tuple():
            inner = native if isinstance(native, Mapping) else dict(_numbered(native))
            parts = _parts(space)
            return {
                name: observation(parts[name], part, inner[name]) for name, part in spec.items()
            }
    return np.array(native, spec.dtype)


def _parts(space: Any) -> dict[str, Any]:
    from gymnasium import spaces

    return dict(_numbered(space.spaces)) if isinstance(space, spaces.Tuple) else dict(space.spaces)


def _numbered(parts: Any) -> list[tuple[str, Any]]:
    return [(str(number), part) for number, part in enumerate(parts)]


def _one_hot(numbers: Array, size: int) -> Array:
    return np.eye(size, dtype=np.float32)[numbers]
