"""Specs as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from sebulba.types import (
    ActionSpec,
    ArraySpec,
    BoxSpec,
    DiscreteSpec,
    EnvSpec,
    MultiDiscreteSpec,
)


def to_fields(spec: EnvSpec) -> dict[str, Any]:
    """All of ``spec`` but the number of environments, as JSON can hold it."""
    return {
        "observation": _of_observation(spec.observation),
        "action": _of_action(spec.action),
        "frame_skip": spec.frame_skip,
        "action_names": list(spec.action_names),
    }


def from_fields(fields: dict[str, Any]) -> EnvSpec:
    """The spec of one environment that ``to_fields`` wrote.

    Raises:
      KeyError, TypeError, ValueError: it did not write this.
    """
    return EnvSpec(
        observation=_observation(fields["observation"]),
        action=_action(fields["action"]),
        num_envs=1,
        frame_skip=int(fields["frame_skip"]),
        action_names=tuple(map(str, fields["action_names"])),
    )


def _of_observation(told: Any) -> dict[str, Any]:
    if isinstance(told, ArraySpec):
        return {"shape": list(told.shape), "dtype": np.dtype(told.dtype).name}
    return {"dict": {name: _of_observation(each) for name, each in told.items()}}


def _observation(fields: dict[str, Any]) -> Any:
    if "dict" in fields:
        return {name: _observation(each) for name, each in fields["dict"].items()}
    return ArraySpec(tuple(map(int, fields["shape"])), np.dtype(fields["dtype"]))


def _of_action(told: ActionSpec) -> dict[str, Any]:
    if isinstance(told, BoxSpec):
        return {"kind": "box", "low": told.low.tolist(), "high": told.high.tolist()}
    if isinstance(told, DiscreteSpec):
        return {"kind": "discrete", "num_actions": int(told.num_actions)}
    return {"kind": "multi_discrete", "num_actions": list(map(int, told.num_actions))}


def _action(fields: dict[str, Any]) -> ActionSpec:
    if fields["kind"] == "box":
        return BoxSpec(np.array(fields["low"], np.float32), np.array(fields["high"], np.float32))
    if fields["kind"] == "discrete":
        return DiscreteSpec(int(fields["num_actions"]))
    if fields["kind"] == "multi_discrete":
        return MultiDiscreteSpec(tuple(map(int, fields["num_actions"])))
    raise ValueError(f"unknown kind of action {fields['kind']!r}")
