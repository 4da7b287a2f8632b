"""Environments with the interface dm_env as ours."""

from __future__ import annotations

from functools import partial
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from sebulba.envs.dm_env import DmEnv
from sebulba.envs.gymnasium import GymnasiumEnv
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, MultiDiscreteSpec

ACTIONS: list[Any] = []


def whole(low: int, high: int) -> specs.BoundedArray:
    return specs.BoundedArray((), np.int32, low, high)


class Lab(dm_env.Environment):
    """As DeepMind Lab: an image, an instruction, and several whole numbers as an action."""

    def __init__(self, seed: int = 0, action: str = "several", last: float = 0.0) -> None:
        self._rng, self._last, self._time = np.random.default_rng(seed), last, 0
        self._action = {
            "dict": {
                "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME": whole(-512, 512),
                "STRAFE_LEFT_RIGHT": whole(-1, 1),
                "FIRE": whole(0, 1),
            },
            "pairs": {"A": specs.BoundedArray((2,), np.int32, 0, 1)},
            "unbounded": {"A": specs.Array((), np.int32)},
            "several": specs.BoundedArray((2,), np.intc, [-512, 0], [486, 1]),
            "one": specs.DiscreteArray(5),
            "forces": specs.BoundedArray((3,), np.float64, -1.0, 1.0),
            "endless": specs.Array((3,), np.float64),
            "switches": specs.Array((2,), np.bool_),
        }[action]

    def reset(self) -> dm_env.TimeStep:
        self._time = 0
        return dm_env.restart(self._observed())

    def step(self, action: Any) -> dm_env.TimeStep:
        if isinstance(self._action, specs.BoundedArray):
            self._action.validate(action)
        elif isinstance(self._action, dict):
            assert list(action) == list(self._action)
            for name, part in self._action.items():
                part.validate(action[name])
        ACTIONS.append(action)
        self._time += 1
        if self._time < 3:
            return dm_env.transition(1.0, self._observed())
        return dm_env.TimeStep(dm_env.StepType.LAST, 2.0, self._last, self._observed())

    def observation_spec(self) -> Any:
        return {
            "image": specs.BoundedArray((6, 8, 3), np.uint8, 0, 255),
            "speed": specs.Array((2,), np.float64),
            "instruction": specs.StringArray(()),
            "nothing": specs.Array((0,), np.float64),
            "count": specs.BoundedArray((), np.int32, -(2**31), 2**31 - 1),
        }

    def action_spec(self) -> Any:
        return self._action

    def _observed(self) -> Any:
        image = self._rng.integers(0, 256, (6, 8, 3)).astype(np.uint8)
        seen = {"image": image, "speed": np.ones(2), "instruction": "go", "nothing": np.zeros(0)}
        return {**seen, "count": np.int32(self._time)}


def make(num_envs: int = 2, seed: int = 0, **options: Any) -> GymnasiumEnv:
    return GymnasiumEnv(partial(DmEnv, Lab, options), num_envs, seed)


def test_specs() -> None:
    assert make().spec.observation == {
        "image": ArraySpec((6, 8, 3), np.dtype(np.uint8)),
        "speed": ArraySpec((2,), np.dtype(np.float32)),
        "count": ArraySpec((), np.dtype(np.int32)),
    }
    assert make().spec.action == MultiDiscreteSpec((999, 2))
    assert make(action="one").spec.action == DiscreteSpec(5)
    box = make(action="forces").spec.action
    assert isinstance(box, BoxSpec) and box.low.tolist() == [-1, -1, -1]
    assert make(action="switches").spec.action == MultiDiscreteSpec((2, 2))
    with pytest.raises(ValueError, match="a Box with bounds"):
        make(action="endless")
    for action in ("pairs", "unbounded"):
        with pytest.raises(ValueError, match="each must be a single whole number"):
            make(action=action)


def test_a_dict_of_actions() -> None:
    env = make(num_envs=1, action="dict")
    assert env.spec.action == MultiDiscreteSpec((1025, 3, 2))
    env.reset()
    env.step(np.array([[0, 2, 1]], np.int32))
    names = ["LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", "STRAFE_LEFT_RIGHT", "FIRE"]
    assert ACTIONS[-1] == dict(zip(names, [-512, 1, 1], strict=True))


@pytest.mark.parametrize(("last", "discount"), [(0.0, 0), (1.0, 1)])
def test_episodes(last: float, discount: float) -> None:
    env = make(last=last)
    # 512 is the action 0 of the first number: those of the environment begin at -512.
    action = np.array([[0, 1], [998, 0]], np.int32)
    timesteps = [env.reset(), *(env.step(action) for _ in range(5))]
    assert [t.first[0] for t in timesteps] == [True, False, False, False, True, False]
    assert [t.reward[1] for t in timesteps] == [0, 1, 1, 2, 0, 1]
    assert [t.discount[0] for t in timesteps] == [1, 1, 1, discount, 1, 1]
    env.close()


def test_seeds_are_heeded() -> None:
    """Those of one batch differ from each other and from those of another seed."""
    images = [make(seed=seed).reset().observation["image"] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(images[0], images[1])
    assert (images[0] != images[2]).any() and (images[0][0] != images[0][1]).any()
