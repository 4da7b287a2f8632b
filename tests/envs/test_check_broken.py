"""Environments that are broken on purpose: the check says which rule each of them breaks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from wrong_env import Wrong, checked

from sebulba import ConfigError
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec, Timestep


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
