"""Environments that are wrong on purpose, and what the check of environments says of each."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from sebulba import ConfigError, envs
from sebulba.envs import Catch, EnvReport, check_env
from sebulba.envs.check import random_action
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec, Timestep


def checked(make_env: Any, num_steps: int = 300, **more: Any) -> EnvReport:
    return check_env(make_env, 3, num_steps, **more)


class Wrong:
    """Catch, with something about it changed."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.env = Catch(num_envs, seed)
        self.num_envs, self.num_steps = num_envs, 0

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self) -> Timestep:
        return self.changed(self.env.reset())

    def step(self, action: Any) -> Timestep:
        self.num_steps += 1
        return self.changed(self.env.step(action))

    def close(self) -> None:
        pass

    def changed(self, timestep: Timestep) -> Timestep:
        return timestep


class ResetsAtTheEnd(Wrong):
    """The last observation of an episode is the first one of the next."""

    def changed(self, timestep: Timestep) -> Timestep:
        if not (timestep.discount == 0).any():
            return timestep
        return timestep._replace(observation=self.env.step(np.zeros(3, np.int32)).observation)


class FirstLate(ResetsAtTheEnd):
    """The timestep after it, which is the second one of the next episode, is called the first."""

    ended = False

    def changed(self, timestep: Timestep) -> Timestep:
        first = np.full(3, self.ended) | (self.num_steps == 0)
        self.ended = bool((timestep.discount == 0).any())
        return super().changed(timestep)._replace(first=first)


class FirstOnTime(ResetsAtTheEnd):
    """It is called the first there already."""

    def changed(self, timestep: Timestep) -> Timestep:
        ended = timestep.discount == 0
        return super().changed(timestep)._replace(first=timestep.first | ended)


class FirstAfter(ResetsAtTheEnd):
    """It comes a second time in the next step, then as the first."""

    last: Any = None

    def step(self, action: Any) -> Timestep:
        if self.last is not None:
            last, self.last = self.last, None
            ones = np.ones(3, np.float32)
            return Timestep(last, 0 * ones, ones, ones.astype(bool))
        timestep = super().step(action)
        if (timestep.discount == 0).any():
            self.last = timestep.observation
        return timestep


class InvertedDiscount(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        return timestep._replace(discount=np.where(timestep.first, 1, 1 - timestep.discount))


class InvertedDiscountEverywhere(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        return timestep._replace(discount=1 - timestep.discount)


class GammaInDiscount(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        discount = np.where(timestep.first, 1, timestep.discount * np.float32(0.99))
        return timestep._replace(discount=discount)


class NoReset(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        first = np.full(3, self.num_steps == 0)
        return timestep._replace(first=first)


class RewardNan(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        wrong = np.array([0, np.nan, 0], np.float32)
        return timestep._replace(reward=wrong) if self.num_steps == 5 else timestep


class ObservationNan(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        if self.num_steps == 5:
            timestep.observation[2, 0, 0] = np.nan
        return timestep


class RewardOfTwoAxes(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        return timestep._replace(reward=timestep.reward[:, None])


class RewardAList(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        return timestep._replace(reward=timestep.reward.tolist())


class FirstAFloat(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        return timestep._replace(first=timestep.first.astype(np.float32))


class Wider(Wrong):
    def changed(self, timestep: Timestep) -> Timestep:
        wide = np.zeros((3, 10, 6), np.float32)
        return timestep._replace(observation=wide) if self.num_steps else timestep


class OneEnvironment(Wrong):
    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(1, seed)

    def step(self, action: Any) -> Timestep:
        return super().step(action[:1])


class Buffer(Wrong):
    """It writes each observation to the same array."""

    buffer: Any = None

    def changed(self, timestep: Timestep) -> Timestep:
        if self.buffer is None:
            self.buffer = np.zeros_like(timestep.observation)
        self.buffer[...] = timestep.observation
        return timestep._replace(observation=self.buffer)


class Buffers(Wrong):
    """Each array is used again 16 steps later."""

    buffers: Any = None

    def changed(self, timestep: Timestep) -> Timestep:
        if self.buffers is None:
            self.buffers = np.zeros((16, *timestep.observation.shape), np.float32)
        buffer = self.buffers[self.num_steps % 16]
        buffer[...] = timestep.observation
        return timestep._replace(observation=buffer)


class Hangs(Wrong):
    def step(self, action: Any) -> Timestep:
        if self.num_steps == 7:
            time.sleep(1.0)
        return super().step(action)


class WritesToActions(Wrong):
    def step(self, action: Any) -> Timestep:
        action += 0
        return super().step(action)


class Exits(Wrong):
    def step(self, action: Any) -> Timestep:
        raise SystemExit(3)


class Tuples(Wrong):
    def reset(self) -> Any:
        return self.env.reset().observation, {}


def with_spec(**changes: Any) -> type[Wrong]:
    class Told(Wrong):
        @property
        def spec(self) -> EnvSpec:
            return self.env.spec._replace(**changes)

    return Told


class NoSpec(Wrong):
    spec = None  # type: ignore[assignment]


class ManyNumbers(Wrong):
    """A walk in 60 dimensions from a random place, which resets in the step that ends it."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.rng, self.time = np.random.default_rng(seed), 0

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec._replace(observation=ArraySpec((60,), np.dtype(np.float32)))

    def changed(self, timestep: Timestep) -> Timestep:
        ended = timestep.discount == 0
        self.time = 0 if ended.any() or timestep.first.all() else self.time + 1
        place = self.rng.normal(size=(3, 60)) + 3 * self.time
        return timestep._replace(observation=place.astype(np.float32))


class ClosesOnce(Wrong):
    is_open = True

    def close(self) -> None:
        assert self.is_open
        self.is_open = False


class Raises(Wrong):
    def step(self, action: Any) -> Timestep:
        if self.num_steps == 7:
            raise KeyError("level 9")
        return super().step(action)


BROKEN: dict[type[Wrong], str] = {
    FirstLate: "last observations of 100% of the episodes look as after a reset.*in the next step",
    FirstOnTime: r"reward of environment.* where an episode starts.*must be 0.*reset in the\s+next",
    FirstAfter: "last observations of 100% of the episodes look as after a reset.*in the next step",
    InvertedDiscount: "discount is 0 in 100% of the steps within episodes.*1 - terminated",
    InvertedDiscountEverywhere: "discount .* is 0.0 on reset.* must be 1.*1 - terminated",
    GammaInDiscount: r"discount of environment 0 is 0\.99\d* in step 1: it must be 0 where",
    RewardNan: "reward of environment 1 is nan in step 5: it must be finite",
    ObservationNan: "observation of environment 2 is nan in step 5: it must be finite",
    RewardOfTwoAxes: r"reward is float32 \[3, 1\] on reset, and its spec says numbers \[3\]",
    RewardAList: "reward is a list on reset: it must be an array",
    FirstAFloat: r"first is float32 \[3\] on reset, and its spec says bool \[3\]",
    Wider: r"observation is float32 \[3, 10, 6\] in step 1, and its spec says float32 \[3, 10, 5\]",
    OneEnvironment: "num_envs is 1, and 3 were asked for",
    Buffer: "step 1 changed the observation that the environment had returned before",
    Buffers: "step 16 changed the observation that the environment had returned before",
    Hangs: "step 8 has not returned after 0.3 s",
    ManyNumbers: r"last observations of \d+% of the episodes look as after a reset",
    Exits: r"step 1 ends the process \(sys.exit\)",
    Tuples: "returned a tuple on reset: it must be a sebulba.Timestep",
    NoSpec: "spec is a builtins.NoneType: it must be a sebulba.EnvSpec.*GymnasiumEnv",
    with_spec(observation={}): "observation is {}, but it must have an array",
    with_spec(observation=None): "observation is None, but it must have an array",
    with_spec(observation=ArraySpec(5, np.dtype(int))): "has shape 5: .* tuple",  # type: ignore[arg-type]
    with_spec(observation=ArraySpec((5,), "flot")): "is of dtype flot",  # type: ignore[arg-type]
    with_spec(action=DiscreteSpec(0)): "a whole number of actions, 1 or more",
    with_spec(action=MultiDiscreteSpec(3)): "must be a tuple",  # type: ignore[arg-type]
    with_spec(action=BoxSpec(-1.0, 1.0)): "must be arrays of one shape",  # type: ignore[arg-type]
    with_spec(action=BoxSpec(np.ones(2), np.ones(2))): "each low below its high",  # type: ignore[arg-type]
    with_spec(action=BoxSpec(np.ones(0), np.ones(0))): "of one number or more",  # type: ignore[arg-type]
    ClosesOnce: "close raises AssertionError.* a second time",
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_what_is_broken_is_named(wrong: type[Wrong]) -> None:
    with pytest.raises(ConfigError, match=BROKEN[wrong]):
        checked(wrong, timeout_seconds=0.3)


def test_what_an_environment_raises_is_told_with_the_step() -> None:
    with pytest.raises(KeyError, match="level 9") as raised:
        checked(Raises)
    assert raised.value.__notes__ == ["in step 8 of the environment"]
    with pytest.raises(ValueError, match="read-only"):
        checked(WritesToActions)


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
