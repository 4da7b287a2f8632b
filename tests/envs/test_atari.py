"""Atari through EnvPool: what the two protocols ask for, and lost lives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from env_battery import EnvBattery, ended, random_action, rollout

from sebulba import envs
from sebulba.types import ArraySpec, DiscreteSpec, Env

BREAKOUT = "Breakout-v5"


@pytest.mark.slow
class TestBreakoutMachado(EnvBattery):
    num_steps = 8

    def make(self, seed: int) -> Env:
        return envs.make(BREAKOUT, 2, seed=seed, options={"max_episode_steps": 5})


@pytest.mark.slow
class TestBreakoutImpala(EnvBattery):
    num_steps = 8

    def make(self, seed: int) -> Env:
        options = {"max_episode_steps": 5}
        return envs.make(BREAKOUT, 2, seed=seed, options=options, atari_protocol="impala")


def config(env: Env) -> Any:
    return env._pool.spec.config  # type: ignore[attr-defined]


def test_machado_protocol_reaches_envpool() -> None:
    env = envs.make(BREAKOUT, 1, seed=0)
    assert env.spec.action == DiscreteSpec(18)
    assert env.spec.observation == ArraySpec((84, 84), np.dtype(np.uint8))
    assert env.spec.frame_skip == 4
    c = config(env)
    assert c.repeat_action_probability == 0.25
    assert c.max_episode_steps == 27_000
    assert (c.noop_max, c.stack_num) == (1, 1)
    assert not (c.use_fire_reset or c.reward_clip or c.episodic_life)
    assert not c.zero_discount_on_life_loss


def test_impala_protocol_reaches_envpool() -> None:
    env = envs.make(BREAKOUT, 1, seed=0, atari_protocol="impala")
    assert env.spec.action == DiscreteSpec(4)
    c = config(env)
    assert c.repeat_action_probability == 0
    assert (c.noop_max, c.stack_num) == (30, 1)
    assert not (c.use_fire_reset or c.reward_clip or c.episodic_life)
    assert c.zero_discount_on_life_loss


def test_options_override_the_protocol() -> None:
    env = envs.make(BREAKOUT, 1, seed=0, options={"full_action_space": False, "frame_skip": 2})
    assert env.spec.action == DiscreteSpec(4)
    assert env.spec.frame_skip == 2
    assert config(env).max_episode_steps == 54_000
    assert config(env).repeat_action_probability == 0.25


def test_losing_a_life_ends_the_episode_only_for_learning() -> None:
    for protocol, lost in (("impala", True), ("machado", False)):
        env = envs.make(BREAKOUT, 2, seed=0, atari_protocol=protocol)
        timesteps = rollout(env, 100)
        assert not ended(timesteps).any(), "the game is not over before five lives are lost"
        assert any((t.discount == 0).any() for t in timesteps) == lost


def test_lives_are_counted_from_one_step_to_the_next() -> None:
    env = envs.make(BREAKOUT, 2, seed=0, atari_protocol="impala")
    rng = np.random.default_rng(0)
    env.reset()
    before = env._lives  # type: ignore[attr-defined]
    for _ in range(400):
        timestep = env.step(random_action(env.spec, rng))
        lives = env._lives  # type: ignore[attr-defined]
        np.testing.assert_array_equal(timestep.discount == 0, (lives < before) & ~timestep.first)
        before = lives


def test_a_new_game_with_fewer_lives_than_the_last_is_no_loss() -> None:
    env = envs.make(BREAKOUT, 1, seed=0, atari_protocol="impala")
    env.reset()
    env._lives += 1  # type: ignore[attr-defined]
    assert (env.reset().discount == 1).all()


def test_atari_rewards_are_not_clipped() -> None:
    timesteps = rollout(envs.make("SpaceInvaders-v5", 2, seed=0), 100)
    assert max(t.reward.max() for t in timesteps) > 1
