"""Tests that every implementation of ``sebulba.types.Env`` must pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import numpy as np

from sebulba.types import DiscreteSpec, Env, EnvSpec, Timestep


def random_action(spec: EnvSpec, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """One uniformly random action ``[B, ...]``."""
    if isinstance(spec.action, DiscreteSpec):
        return rng.integers(spec.action.num_actions, size=spec.num_envs, dtype=np.int32)
    low, high = spec.action.low, spec.action.high
    return rng.uniform(low, high, (spec.num_envs, *low.shape)).astype(np.float32)


def rollout(env: Env, num_steps: int, seed: int = 0) -> list[Timestep]:
    """The first timestep and those after ``num_steps`` random actions."""
    rng = np.random.default_rng(seed)
    return [env.reset()] + [env.step(random_action(env.spec, rng)) for _ in range(num_steps)]


def ended(timesteps: list[Timestep]) -> np.ndarray[Any, Any]:
    """Bool ``[T, B]``: the next timestep is the first of an episode."""
    return np.stack([t.first for t in timesteps[1:]])


class EnvBattery:
    """Inherit from it, and say how the environment is made.

    ``num_steps`` random actions must be enough for an episode to end, somewhere in the batch.
    """

    num_steps = 40

    def make(self, seed: int) -> Env:
        raise NotImplementedError

    def test_arrays_are_as_the_spec_says(self) -> None:
        env = self.make(seed=0)
        spec = env.spec
        for timestep in rollout(env, self.num_steps):
            is_spec = lambda x: hasattr(x, "dtype") and hasattr(x, "shape")  # noqa: E731
            expected = jax.tree.map(
                lambda s: ((spec.num_envs, *s.shape), s.dtype), spec.observation, is_leaf=is_spec
            )
            observed = jax.tree.map(lambda x: (x.shape, x.dtype), timestep.observation)
            assert observed == expected
            for field, dtype in (("reward", "f4"), ("discount", "f4"), ("first", "?")):
                array = getattr(timestep, field)
                assert (array.shape, array.dtype) == ((spec.num_envs,), np.dtype(dtype)), field
        env.close()

    def test_action_spec(self) -> None:
        action = self.make(seed=0).spec.action
        if isinstance(action, DiscreteSpec):
            assert action.num_actions >= 2
        else:
            assert action.low.shape == action.high.shape
            assert action.low.dtype == action.high.dtype == np.float32
            assert (action.low < action.high).all()

    def test_first_reward_and_discount(self) -> None:
        timesteps = rollout(self.make(seed=0), self.num_steps)
        assert timesteps[0].first.all()
        assert ended(timesteps).any(), "no episode ended: raise num_steps"
        for before, after in pairwise(timesteps):
            assert (after.reward[after.first] == 0).all()
            assert (after.discount[after.first] == 1).all()
            assert np.isin(after.discount, (0, 1)).all()
            assert not (before.first & after.first).any(), "an episode of no steps"

    def test_the_step_after_the_end_ignores_the_action(self) -> None:
        timesteps = rollout(self.make(seed=0), self.num_steps)
        ends = ended(timesteps)
        rng, other = np.random.default_rng(0), np.random.default_rng(1)
        env = self.make(seed=0)
        env.reset()
        for end, expected in zip(ends, timesteps[1:], strict=True):
            action, another = random_action(env.spec, rng), random_action(env.spec, other)
            action[end] = another[end]
            assert_equal(env.step(action), expected)

    def test_same_seed_same_episodes(self) -> None:
        one, two = (rollout(self.make(seed=3), self.num_steps) for _ in range(2))
        assert_equal(one, two)

    def test_other_seed_other_episodes(self) -> None:
        one, two = (jax.tree.leaves(rollout(self.make(s), self.num_steps)) for s in (3, 4))
        assert any((x != y).any() for x, y in zip(one, two, strict=True))

    def test_arrays_are_not_written_to_again(self) -> None:
        env = self.make(seed=0)
        rng = np.random.default_rng(0)
        timesteps, copies = [], []
        timestep = env.reset()
        for _ in range(self.num_steps):
            timesteps.append(timestep)
            copies.append(jax.tree.map(np.copy, timestep))
            action = random_action(env.spec, rng)
            timestep = env.step(action)
            action[:] = 0
        env.close()
        assert_equal(timesteps, copies)

    def test_a_read_only_action_is_fine(self) -> None:
        env = self.make(seed=0)
        env.reset()
        action = random_action(env.spec, np.random.default_rng(0))
        action.flags.writeable = False
        env.step(action)

    def test_reset_starts_a_new_episode_everywhere(self) -> None:
        env = self.make(seed=0)
        rollout(env, 2)
        again = env.reset()
        assert again.first.all()
        assert not env.step(random_action(env.spec, np.random.default_rng(0))).first.any()

    def test_close_twice(self) -> None:
        env = self.make(seed=0)
        env.reset()
        env.close()
        env.close()


def assert_equal(one: Any, two: Any) -> None:
    """Two trees of arrays are equal, bit by bit."""
    jax.tree.map(np.testing.assert_array_equal, one, two)
