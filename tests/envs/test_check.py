"""What the check of environments says of doubtful ones, and of right ones."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from wrong_env import Wrong, checked

from sebulba import ConfigError, envs
from sebulba.envs import Catch, check_env
from sebulba.envs.check import random_action
from sebulba.types import ArraySpec, BoxSpec, EnvSpec, Timestep


class NoReset(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        first = np.full(3, self.num_steps == 0)
        return timestep._replace(first=first)


class NeverTerminates(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        return timestep._replace(discount=np.ones(3, np.float32))


class OtherEachTime(Wrong):
    made: ClassVar[list[int]] = []

    def __init__(self, num_envs: int, seed: int) -> None:
        self.made.append(seed)
        super().__init__(num_envs, len(self.made))


class SameForEverySeed(Wrong):
    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, 0)


class FlatPixels(Wrong):
    @property
    def spec(self) -> EnvSpec:
        return self.env.spec._replace(observation=ArraySpec((7056,), np.dtype(np.uint8)))

    def changed(self, timestep: Timestep) -> Timestep:
        pixels = np.zeros((3, 7056), np.uint8)
        pixels[:, :50] = timestep.observation.reshape(3, 50)
        return timestep._replace(observation=pixels)


class Varied(Wrong):
    """Episodes of one to nine steps, none of which terminates."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.rng, self.ended = np.random.default_rng(seed), np.ones(num_envs, bool)

    def changed(self, timestep: Timestep) -> Timestep:
        first = self.ended
        self.ended = (self.rng.uniform(size=3) < 0.3) & ~first
        ones = np.ones(3, np.float32)
        return Timestep(timestep.observation, 0 * ones, ones, first)


class MostlyAtTheLimit(Wrong):
    """Most episodes terminate after five steps, and the others before."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.rng, self.count = np.random.default_rng(seed), np.full(num_envs, 5)

    def changed(self, timestep: Timestep) -> Timestep:
        first = self.count == 5
        self.count = np.where(first, 0, self.count + 1)
        self.count[(self.rng.uniform(size=3) < 0.05) & ~first] = 5
        ones = np.ones(3, np.float32)
        return Timestep(timestep.observation, 0 * ones, (self.count < 5) * ones, first)


class RoundTrip(Wrong):
    """It starts and ends with zeros, rightly."""

    def changed(self, timestep: Timestep) -> Timestep:
        at_bounds = timestep.first | (timestep.discount == 0)
        return timestep._replace(
            observation=np.where(at_bounds[:, None, None], 0, timestep.observation)
        )


DOUBTFUL: dict[Callable[..., Any], str] = {
    Catch: "100% of the episodes .* after exactly 9 steps. If that is a time limit",
    MostlyAtTheLimit: r"8\d% of the episodes that terminated .* after exactly 5 steps",
    NeverTerminates: "All 90 episodes ended after 9 steps with a discount of 1.*must be 0 there",
    Varied: "episodes ended at different lengths with a discount of 1",
    OtherEachTime: "same seed and the same actions differ on reset",
    SameForEverySeed: "different seeds are the same for 200 steps",
    NoReset: "discount was 0 in 90 steps, and no episode started afterwards. If those were ends",
    RoundTrip: "The last observations of 100% of the episodes look as after a reset",
    FlatPixels: "observation is 7,056 bytes in a row.*as it is",
}


@pytest.mark.parametrize("doubtful", DOUBTFUL)
def test_what_may_be_wrong_is_a_warning(doubtful: Callable[..., Any]) -> None:
    warnings = checked(doubtful).warnings
    assert any(re.search(DOUBTFUL[doubtful], warning) for warning in warnings), warnings


class Endless(Wrong):
    """With actions that have no bounds."""

    @property
    def spec(self) -> EnvSpec:
        bound = np.full(2, np.inf, np.float32)
        return self.env.spec._replace(action=BoxSpec(-bound, bound))

    def step(self, action: Any) -> Timestep:
        assert np.isfinite(action).all() and action.std() > 1
        return super().step(np.zeros(3, np.int32))


def test_actions_may_have_no_bounds() -> None:
    assert checked(Endless).episodes == 90


def test_its_own_arguments_are_checked() -> None:
    for wrong in ({"num_steps": 0}, {"seed": -1}, {"timeout_seconds": 0.0}):
        with pytest.raises(ConfigError, match="must be at least 1"):
            checked(Catch, **wrong)


def test_a_few_steps_are_too_few() -> None:
    assert "No episode ended" in checked(Catch, num_steps=5).warnings[0]
    assert "Only 6 episodes ended" in checked(Catch, num_steps=25).warnings[0]


def test_it_reports_what_it_saw_in_a_thread_of_its_own() -> None:
    threads: set[threading.Thread] = set()

    class Noted(Wrong):
        def step(self, action: Any) -> Timestep:
            threads.add(threading.current_thread())
            return super().step(action)

    report = checked(Noted)
    assert threading.main_thread() not in threads
    assert (report.steps, report.episodes, report.length, report.terminated) == (900, 90, 9, 1)
    assert -1 <= report.episode_return < 0


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {}),
        ("MountainCarContinuous-v0", {"max_episode_steps": 30}),
        ("gymnasium:MountainCarContinuous-v0", {"max_episode_steps": 30}),
    ],
)
def test_right_ones_pass(env_id: str, options: dict[str, Any]) -> None:
    def make_env(num_envs: int, seed: int) -> Any:
        return envs.make(env_id, num_envs, seed=seed, options=options)

    report = check_env(make_env, 2, 400)
    assert report.episodes >= 10
    continuous = "Continuous" in env_id
    assert [("time limit" in warning) for warning in report.warnings] == [True] * continuous


@pytest.mark.parametrize(
    ("low", "high"), [(50, 100), (50, np.inf), (-np.inf, -1e9), (-np.inf, np.inf), (-3e38, 3e38)]
)
def test_random_actions_are_within_any_bounds(low: float, high: float) -> None:
    box = BoxSpec(np.full(3, low, np.float32), np.full(3, high, np.float32))
    spec = EnvSpec(ArraySpec((1,), np.dtype(np.float32)), box, 100)
    action = random_action(np.random.default_rng(0), spec)
    assert action.shape == (100, 3) and np.isfinite(action).all() and np.ptp(np.float64(action)) > 1
    assert (action >= box.low).all() and (action <= box.high).all()
