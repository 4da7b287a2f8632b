"""Gymnasium's environments as ours, whatever their way to reset themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from env_battery import EnvBattery, rollout
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sebulba.envs.gymnasium import GymnasiumEnv
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, Env, MultiDiscreteSpec


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps; terminates after three, in every second episode is truncated after two."""

    def __init__(self, unit: float = 1.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(4, start=-1)
        self._unit, self._episode = unit, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode += 1
        self._time = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        terminated = self._episode % 2 == 0 and self._time == 3
        truncated = self._episode % 2 == 1 and self._time == 2
        return self._observed(), self._unit * float(action), terminated, truncated, {}

    def _observed(self) -> Any:
        return np.array([self._episode, self._time], np.float64)


def counters(mode: AutoresetMode) -> Callable[..., SyncVectorEnv]:
    def make(num_envs: int, unit: float = 1.0) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Counter(unit)] * num_envs, autoreset_mode=mode)

    return make


MAKERS = {"one": Counter, **{mode.name: counters(mode) for mode in AutoresetMode}}


@pytest.mark.parametrize("name", MAKERS)
def test_every_way_to_reset_becomes_ours(name: str) -> None:
    env = GymnasiumEnv(MAKERS[name], 2, 0, {"unit": 10.0})
    assert env.spec.action == DiscreteSpec(4)
    assert env.spec.observation == ArraySpec((2,), np.dtype(np.float32))
    actions = np.array([[3, 0], [3, 1], [3, 2], [0, 0], [1, 3], [2, 3], [3, 3], [0, 0]], np.int32)
    timesteps = [env.reset(), *(env.step(action) for action in actions)]
    seen = [[tuple(map(float, row)) for row in t.observation] for t in timesteps]
    times = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert seen == [[time, time] for time in times]
    rewards = [t.reward.tolist() for t in timesteps]
    # The action of the environment begins at -1. That of a step that resets counts for nothing.
    assert rewards[1:4] == [[20, -10], [20, 0], [20, 10]]
    assert rewards[4] == rewards[7] == [0, 0]
    assert [t.discount[0] for t in timesteps] == [1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert [bool(t.first[0]) for t in timesteps] == [
        True,
        *[False] * 3,
        True,
        False,
        False,
        True,
        False,
    ]
    env.close()
    env.close()


class TestCartPole(EnvBattery):
    num_steps = 80

    def make(self, seed: int) -> Env:
        return GymnasiumEnv("CartPole-v1", 3, seed)


def test_processes_give_what_one_process_gives() -> None:
    here, there = (GymnasiumEnv("CartPole-v1", 2, 3, processes=p) for p in (False, True))
    for a, b in zip(rollout(here, 60), rollout(there, 60), strict=True):
        for mine, theirs in zip(a, b, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    here.close()
    there.close()


UNGUARDED = """
from sebulba.envs import GymnasiumEnv

GymnasiumEnv("CartPole-v1", 1, 3, processes=True)
"""


@pytest.mark.slow
def test_a_script_that_its_processes_would_run_again_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert "below if __name__ == '__main__'" in ran.stderr.splitlines()[-1]


NUMBERS = spaces.Dict(
    {
        "kind": spaces.Discrete(3, start=1),
        "kinds": spaces.MultiDiscrete([2, 3]),
        "bits": spaces.MultiBinary(2),
        "nothing": spaces.Box(0, 1, (0,)),
        "no kinds": spaces.MultiDiscrete([]),
        "pair": spaces.Tuple([spaces.Box(0, 255, (2, 2), np.uint8), spaces.Text(4)]),
    }
)


class Numbers(gymnasium.Env[Any, Any]):
    """Observes all kinds of spaces."""

    observation_space = NUMBERS
    action_space = spaces.MultiDiscrete([2, 3], start=[5, -1])
    actions: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        pair = (np.full((2, 2), 7, np.uint8), "text")
        kinds = {"kind": 3, "kinds": np.array([1, 0]), "bits": np.array([1, 0], np.int8)}
        kinds |= {"nothing": np.zeros(0, np.float32), "no kinds": np.zeros(0, np.int64)}
        return {**kinds, "pair": pair}, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.actions.append(action.tolist())
        return self.reset()[0], 0.0, False, False, {}


def test_spaces() -> None:
    env = GymnasiumEnv(Numbers, 2, 0)
    assert env.spec.action == MultiDiscreteSpec((2, 3))
    observation = env.reset().observation
    env.step(np.array([[0, 0], [1, 2]], np.int32))
    assert Numbers.actions == [[5, -1], [6, 1]]
    assert {name: observation[name][1].tolist() for name in ("kind", "kinds", "bits")} == {
        "kind": [0, 0, 1],
        "kinds": [0, 1, 1, 0, 0],
        "bits": [1, 0],
    }
    # Without the text, and what is empty.
    assert set(observation["pair"]) == {"0"} and set(observation) == {*NUMBERS} - {
        "nothing",
        "no kinds",
    }
    told = env.spec.observation
    for name, space in (("kind", observation["kind"]), ("0", observation["pair"]["0"])):
        spec = told[name] if name in told else told["pair"][name]
        assert spec == ArraySpec(space.shape[1:], space.dtype)


@pytest.mark.parametrize(
    ("space", "remedy"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), r"Box\(-1, 1, shape\)\); leave ClipAction out"),
        (spaces.Text(3), r"MultiDiscrete\(\[2, 3\]\)\)\.$"),
        (spaces.Dict({"a": spaces.Discrete(2)}), r"MultiDiscrete\(\[2, 3\]\)\)\.$"),
    ],
)
def test_actions_without_a_spec_are_refused(space: Any, remedy: str) -> None:
    class Other(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

    with pytest.raises(ValueError, match=rf"the action space is .*TransformAction.*{remedy}"):
        GymnasiumEnv(Other, 1, 0)


WIDEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
FLOAT64 = spaces.Box(-0.1, 0.1, (1,), np.float64)


@pytest.mark.parametrize(
    ("space", "spec", "ours", "native"),
    [
        (spaces.Box(-2, 2, (1,), np.int8), MultiDiscreteSpec((5,)), [[0], [4]], [[-2], [2]]),
        (spaces.Box(3, 5, (), np.int32), DiscreteSpec(3), [0, 2], [3, 5]),
        (spaces.Box(0, 255, (2,), np.uint8), MultiDiscreteSpec((256,) * 2), [[9, 255]] * 2, None),
        (spaces.Box(0, 1, (2,), np.bool_), MultiDiscreteSpec((2, 2)), [[0, 1]] * 2, None),
        # Too many to be choices.
        (spaces.Box(-5000, 5000, (1,), np.int64), None, [[-1.6], [5000.4]], [[-2], [5000]]),
        (
            spaces.Box(*WIDEST, (1,), np.int64),
            None,
            [[-(2.0**63)], [2.0**63]],
            [[n] for n in WIDEST],
        ),
        (FLOAT64, None, [[0.1], [-0.1]], [[0.1], [-0.1]]),
    ],
)
def test_actions_of_a_box_are_in_it(space: Any, spec: Any, ours: Any, native: Any) -> None:
    taken = []

    class Boxed(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

        def step(self, action: Any) -> Any:
            assert space.contains(np.asarray(action))
            taken.append(np.asarray(action).tolist())
            return super().step(0)

    env = GymnasiumEnv(Boxed, 2, 0)
    is_box = isinstance(env.spec.action, BoxSpec)
    assert is_box if spec is None else env.spec.action == spec
    env.reset()
    env.step(np.array(ours, np.float32 if is_box else np.int32))
    assert taken == (ours if native is None else native)


def test_a_vector_environment_with_a_class_of_its_own() -> None:
    def make(num_envs: int) -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")

    observations = [GymnasiumEnv(make, 3, seed).reset().observation for seed in (0, 0, 1)]
    assert observations[0].shape == (3, 4) and len(np.unique(observations[0], axis=0)) == 3
    np.testing.assert_array_equal(observations[0], observations[1])
    assert (observations[0] != observations[2]).any()


def test_a_vector_environment_that_does_not_say_how_it_resets_is_refused() -> None:
    def make(num_envs: int) -> SyncVectorEnv:
        env = SyncVectorEnv([Counter] * num_envs)
        env.metadata = {}
        return env

    with pytest.raises(ValueError, match="have no autoreset_mode"):
        GymnasiumEnv(make, 1, 0)
    with pytest.raises(ValueError, match="leave processes out"):
        GymnasiumEnv(make, 1, 0, processes=True)
