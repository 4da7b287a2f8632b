"""Counts of the actions that were taken, against those that were put in."""

from __future__ import annotations

import numpy as np
import pytest

from sebulba import BoxSpec, DiscreteSpec, MultiDiscreteSpec, Timestep
from sebulba.inference.actions import ActionCounter
from sebulba.types import ActionSpec

BOX = BoxSpec(np.array([-1, 0], np.float32), np.array([1, 2e30], np.float32))
UNBOUNDED = BoxSpec(
    np.array([-np.inf, 0, -np.inf], np.float32), np.array([np.inf, np.inf, -1e9], np.float32)
)


@pytest.mark.parametrize(
    ("spec", "actions", "expected"),
    [
        (DiscreteSpec(3), [0, 2, 2], {"action": {0: 1, 2: 2}}),
        # Each bin has ten of the choices.
        (DiscreteSpec(1000), [0, 9, 999], {"action": {0: 2, 99: 1}}),
        (
            MultiDiscreteSpec((2, 4)),
            [[0, 3], [0, 1], [1, 3]],
            {"action_0": {0: 2, 1: 1}, "action_1": {1: 1, 3: 2}},
        ),
        # NaN is nowhere, and a rounding beyond a bound is in the last bin.
        (
            BOX,
            [[-1, 0], [1.0000001, 2e30], [np.nan, 1.01e30]],
            {"action_0": {0: 1, 19: 1}, "action_1": {0: 1, 10: 1, 19: 1}},
        ),
        # The ends are -10 and 10, 0 and 10, and -3e9 and -1e9.
        (
            UNBOUNDED,
            [[0, 0, -np.inf], [-11, 19.5, -1e9], [np.inf, np.nan, -2.95e9]],
            {
                "action_0": {0: 1, 10: 1, 19: 1},
                "action_1": {0: 1, 19: 1},
                "action_2": {0: 2, 19: 1},
            },
        ),
    ],
    ids=["discrete", "many", "several", "continuous", "unbounded"],
)
def test_actions_are_counted_once(
    spec: ActionSpec, actions: list[object], expected: dict[str, dict[int, int]]
) -> None:
    counter = ActionCounter(spec)
    for action in actions:
        dtype = np.float32 if isinstance(spec, BoxSpec) else np.int32
        # The second environment resets, and ignores its action.
        both = np.array([action, action], dtype)
        nothing = np.zeros(2, np.float32)
        counter.update(both, Timestep(nothing, nothing, nothing, np.array([False, True])))
    found = {
        name: {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
        for name, (_, counts) in counter.taken().items()
    }
    assert found == expected
