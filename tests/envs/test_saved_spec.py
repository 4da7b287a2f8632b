"""Specs as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sebulba.envs.saved_spec import from_fields, to_fields
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

IMAGE = ArraySpec((4, 84, 84), np.dtype(np.uint8))
NUMBER = ArraySpec((), np.dtype(np.float32))
BOX = BoxSpec(np.array([[-0.1, -1]], np.float32), np.array([[1 / 3, 1]], np.float32))


@pytest.mark.parametrize("observation", [IMAGE, NUMBER, {"a": IMAGE, "b": {"dict": NUMBER}}])
@pytest.mark.parametrize("action", [DiscreteSpec(6), MultiDiscreteSpec((2, 3)), BOX])
def test_what_is_read_is_what_was_written(observation: object, action: object) -> None:
    spec = EnvSpec(observation, action, 1, 4, ("left", "right"))
    read = from_fields(json.loads(json.dumps(to_fields(spec), allow_nan=False)))
    assert read._replace(action=None) == spec._replace(action=None)
    assert type(read.action) is type(action)
    for one, other in zip(read.action, action, strict=True):
        np.testing.assert_array_equal(one, other, strict=isinstance(other, np.ndarray))


def test_what_is_no_spec_is_refused() -> None:
    fields = to_fields(EnvSpec(IMAGE, DiscreteSpec(6), 1))
    with pytest.raises(ValueError, match="unknown kind of action 'levers'"):
        from_fields({**fields, "action": {"kind": "levers"}})
