"""Gymnasium's spaces as specs, and what they hold as arrays of these specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sebulba.types import ActionSpec, ArraySpec, BoxSpec, DiscreteSpec, MultiDiscreteSpec

Array = np.ndarray[Any, Any]


_MOST_CHOICES = 1000
"""Of whole numbers from a range of at most so many."""


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
    raise ValueError(
        f"the action space is {space}: it must be Discrete, MultiDiscrete, MultiBinary or a Box "
        "with bounds. Wrap the environment to give it one, such as with "
        "gymnasium.wrappers.TransformAction(env, func, gymnasium.spaces.Box(-1, 1, shape)); leave "
        "ClipAction out, which takes the bounds away."
    )


def native_action(space: Any, action: Array) -> Array:
    """Actions ``[B, ...]`` of the spec, as ``space`` has them."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        action = action + space.start
    if isinstance(space, spaces.Box):
        has_choices = _has_choices(space)
        action = action + np.int64(space.low) if has_choices else _within(space, action)
    return np.asarray(action).astype(space.dtype, copy=False)


def _within(box: Any, numbers: Array) -> Array:
    """Numbers within bounds: a bound of float64 may lie beyond itself when it is one of float32."""
    numbers = np.asarray(numbers, np.float64)
    if _is_whole(box):
        numbers = np.rint(numbers)
    above, below = numbers >= box.high, numbers <= box.low
    # Cast alone, since the largest whole numbers lie beyond themselves as floats.
    between = np.where(above | below, 0, numbers).astype(box.dtype)
    return np.where(above, box.high, np.where(below, box.low, between))


def _has_choices(box: Any) -> bool:
    # As floats, of which no difference overflows.
    ranges = np.float64(box.high) - np.float64(box.low)
    return _is_whole(box) and len(box.shape) < 2 and bool(np.all(ranges < _MOST_CHOICES))


def _is_whole(box: Any) -> bool:
    return bool(np.issubdtype(box.dtype, np.integer) or box.dtype == np.bool_)


def observation_spec(space: Any) -> Any:
    """The spec of the observations in ``space``; None if it is of texts, which are left out.

    Raises:
      ValueError: it is of another kind than those below.
    """
    from gymnasium import spaces

    match space:
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
