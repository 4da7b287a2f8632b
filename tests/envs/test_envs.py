from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from env_battery import EnvBattery, ended, random_action, rollout

from sebulba import envs
from sebulba.envs import EnvPoolEnv
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, Env, MultiDiscreteSpec

BREAKOUT = "Breakout-v5"


class TestCatch(EnvBattery):
    def make(self, seed: int) -> Env:
        return envs.make("sebulba/Catch", 3, seed=seed)


class TestMemory(EnvBattery):
    def make(self, seed: int) -> Env:
        return envs.make("sebulba/Memory", 3, seed=seed, options={"delay": 2})


class TestPreviousAction(EnvBattery):
    def make(self, seed: int) -> Env:
        return envs.PreviousAction(envs.Catch(3, seed))


class TestCartPole(EnvBattery):
    def make(self, seed: int) -> Env:
        return envs.make("CartPole-v1", 3, seed=seed, num_threads=1)


class TestPendulum(EnvBattery):
    def make(self, seed: int) -> Env:
        return envs.make("Pendulum-v1", 3, seed=seed, options={"max_episode_steps": 7})


class TestPreviousContinuousAction(EnvBattery):
    def make(self, seed: int) -> Env:
        options = {"max_episode_steps": 7}
        return envs.PreviousAction(envs.make("Pendulum-v1", 3, seed=seed, options=options))


class TestHalfCheetah(EnvBattery):
    num_steps = 20

    def make(self, seed: int) -> Env:
        return envs.make("HalfCheetah-v4", 3, seed=seed, options={"max_episode_steps": 7})


class TestMiniGrid(EnvBattery):
    def make(self, seed: int) -> Env:
        options = {"max_episode_steps": 7}
        return envs.make("MiniGrid-Empty-Random-5x5-v0", 3, seed=seed, options=options)


def mean_return(env: Env, policy: Any, num_steps: int) -> float:
    """Of whole episodes, all environments together."""
    timestep, total, episodes = env.reset(), 0.0, 0
    for _ in range(num_steps):
        timestep = env.step(policy(timestep))
        total += float(timestep.reward.sum())
        episodes += int((timestep.discount == 0).sum())
    return total / episodes


def test_catch_has_a_perfect_policy() -> None:
    def follow(timestep: Any) -> Any:
        ball = timestep.observation[:, :-1].sum(axis=1).argmax(axis=1)
        paddle = timestep.observation[:, -1].argmax(axis=1)
        return np.sign(ball - paddle) + 1

    assert mean_return(envs.Catch(64, seed=0), follow, 100) == 1


def test_catch_episodes_are_nine_steps_and_terminate() -> None:
    timesteps = rollout(envs.Catch(2, seed=0), 25)
    firsts = [i for i, t in enumerate(timesteps) if t.first.all()]
    assert firsts == [0, 10, 20]
    assert [i for i, t in enumerate(timesteps) if (t.discount == 0).all()] == [9, 19]
    assert all((np.abs(timesteps[i].reward) == 1).all() for i in (9, 19))
    assert not any(t.reward.any() for i, t in enumerate(timesteps) if i not in (9, 19))


def test_memory_needs_the_cue() -> None:
    env = envs.Memory(64, seed=0, delay=3)
    cue = np.zeros(64, np.int64)

    def remember(timestep: Any) -> Any:
        nonlocal cue
        cue = np.where(timestep.first, timestep.observation.argmax(axis=1), cue)
        return cue

    assert mean_return(env, remember, 120) == 1
    rng = np.random.default_rng(0)
    assert abs(mean_return(env, lambda _: random_action(env.spec, rng), 1200)) < 0.05


def test_memory_shows_the_cue_once_and_ignores_other_actions() -> None:
    timesteps = rollout(envs.Memory(64, seed=0, delay=3), 5)
    cues = timesteps[0].observation
    assert (cues.sum(axis=1) == 1).all() and not cues[:, -1].any()
    assert 0 < cues[:, 0].mean() < 1
    for later in timesteps[1:]:
        assert (later.observation == later.observation[0]).all()
    np.testing.assert_array_equal(timesteps[4].observation[0], [0, 0, 1])
    assert not any(t.reward.any() for t in timesteps[:-1])
    assert (np.abs(timesteps[-1].reward) == 1).all()


def test_previous_action_is_the_last_one_and_zero_where_first() -> None:
    env = envs.PreviousAction(envs.Catch(2, seed=0))
    assert env.spec.observation["last_action"] == ArraySpec((), np.dtype(np.int32))
    assert not env.reset().observation["last_action"].any()
    for _ in range(9):
        timestep = env.step(np.array([1, 2]))
        np.testing.assert_array_equal(timestep.observation["last_action"], [1, 2])
    assert not env.step(np.array([1, 2])).observation["last_action"].any()


def test_truncation_is_not_termination() -> None:
    timesteps = rollout(envs.make("CartPole-v1", 8, seed=0, options={"max_episode_steps": 5}), 30)
    last = ended(timesteps)
    discount = np.stack([t.discount for t in timesteps[:-1]])
    assert last.any() and (discount == 1).all()

    timesteps = rollout(envs.make("CartPole-v1", 8, seed=0), 100)
    last = ended(timesteps)
    discount = np.stack([t.discount for t in timesteps[:-1]])
    np.testing.assert_array_equal(discount == 0, last)


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_agrees_with_the_public_interface_of_envpool() -> None:
    """The adapter uses a lower level, so it must say the same as the documented one."""
    import envpool

    seed = (np.random.SeedSequence(5).generate_state(4) >> 1).tolist()
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=seed)
    ours = EnvPoolEnv("CartPole-v1", 4, seed=5)
    np.testing.assert_array_equal(ours.reset().observation, pool.reset()[0])
    rng = np.random.default_rng(0)
    over = np.zeros(4, bool)
    for _ in range(100):
        action = random_action(ours.spec, rng)
        observation, reward, terminated, truncated, _ = pool.step(action)
        timestep = ours.step(action)
        np.testing.assert_array_equal(timestep.observation, observation)
        np.testing.assert_array_equal(timestep.reward, np.where(over, 0, reward))
        np.testing.assert_array_equal(timestep.discount, 1 - terminated)
        np.testing.assert_array_equal(timestep.first, over)
        over = terminated | truncated


def test_consecutive_seeds_share_no_environment() -> None:
    """Actors get consecutive seeds: no environment of one may repeat another's episodes."""
    one, two = (envs.make("CartPole-v1", 8, seed=s).reset().observation for s in (3, 4))
    assert len(np.unique(np.concatenate([one, two]), axis=0)) == 16


def test_specs_of_envpool() -> None:
    cheetah = envs.make("HalfCheetah-v4", 1, seed=0).spec
    assert cheetah.observation == ArraySpec((17,), np.dtype(np.float32))
    assert isinstance(cheetah.action, BoxSpec)
    np.testing.assert_array_equal(cheetah.action.high, np.ones(6, np.float32))
    assert cheetah.frame_skip == 5
    cartpole = envs.make("CartPole-v1", 1, seed=0).spec
    assert (cartpole.action, cartpole.frame_skip) == (DiscreteSpec(2), 1)
    minigrid = envs.make("MiniGrid-Empty-5x5-v0", 1, seed=0).spec
    assert set(minigrid.observation) == {"direction", "image"}


def test_several_discrete_actions_of_envpool() -> None:
    env = envs.make("FlatPack-v0", 3, seed=0)
    assert env.spec.action == MultiDiscreteSpec((25, 4, 9, 9))
    env.reset()
    assert env.step(np.zeros((3, 4), np.int32)).reward.shape == (3,)
    env.close()


def test_nested_observations_of_envpool() -> None:
    env = envs.make("Maze-v0", 2, seed=0)
    assert set(env.spec.observation["agent_position"]) == {"row", "col"}
    observation = env.reset().observation
    for name in ("agent_position", "target_position"):
        for axis in ("row", "col"):
            assert observation[name][axis].shape == (2,)
    # Each is what EnvPool calls so, and not another's.
    walls = observation["walls"]
    place = (observation["agent_position"][axis] for axis in ("row", "col"))
    assert not walls[np.arange(2), *place].any()
    env.close()


def test_a_mission_is_observed_only_if_asked_for() -> None:
    env = envs.make("MiniGrid-DoorKey-5x5-v0", 2, seed=0)
    assert set(env.spec.observation) == set(env.reset().observation) == {"direction", "image"}
    env = envs.make("MiniGrid-DoorKey-5x5-v0", 2, seed=0, options={"mission": True})
    text = bytes(env.reset().observation["mission"][1])
    assert text.startswith(b"use the key to open the door")
    with pytest.raises(ValueError, match="unknown option of Maze-v0 'mission'"):
        envs.make("Maze-v0", 2, seed=0, options={"mission": True})


@pytest.mark.parametrize(
    ("env_id", "close"),
    [("breakout", BREAKOUT), ("CartPole-v5", "CartPole-v1"), ("Memory", "sebulba/Memory")],
)
def test_an_unknown_id_lists_close_ones(env_id: str, close: str) -> None:
    with pytest.raises(ValueError, match=f"unknown environment '{env_id}'.*{close}"):
        envs.make(env_id, 1, seed=0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_spec(*_: object, **__: object) -> None:
        raise ImportError("requires the system Qt 5 runtime: apt install qtbase5-dev")

    monkeypatch.setattr("envpool.make_spec", make_spec)
    with pytest.raises(ValueError, match=r"CoinrunEasy-v0 cannot be loaded: .*qtbase5-dev"):
        envs.make("CoinrunEasy-v0", 1, seed=0)


@pytest.mark.slow
def test_procgen_shows_images_with_their_channels_last() -> None:
    try:
        env = envs.make("CoinrunEasy-v0", 2, seed=0)
    except ValueError as error:
        pytest.skip(str(error))
    image = env.reset().observation
    assert image.shape == (2, 64, 64, 3)
    # Neighbors are alike in a picture.
    whole = image.astype(float)
    assert np.abs(np.diff(whole, axis=2)).mean() < whole.std() / 2
    env.close()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("sebulba/Memory", {"dely": 3}, "'dely': close ones are delay"),
        ("sebulba/Catch", {"rows": 3}, "option of sebulba/Catch 'rows': it has none"),
        ("sebulba/Memory", {"delay": -1}, "delay is -1"),
        ("sebulba/Memory", {"delay": 1.5}, "delay is 1.5"),
        (BREAKOUT, {"frame_skip": 0}, "frame_skip is 0"),
        ("sebulba/Memory", {"num_cues": 1}, "num_cues is 1"),
        ("CartPole-v1", {"max_episode_step": 3}, "'max_episode_step': .*max_episode_steps"),
        ("CartPole-v1", {"zzz": 3}, "'zzz': known: base_path"),
        ("CartPole-v1", {"batch_size": 1}, "'batch_size', because all environments are stepped"),
        (BREAKOUT, {"stack_num": 4}, "'stack_num', because .*stack frames in the agent's network"),
        (BREAKOUT, {"reward_clip": True}, "'reward_clip', because .*clip them in the loss"),
        (BREAKOUT, {"episodic_life": True}, "use zero_discount_on_life_loss=True"),
        (BREAKOUT, {"noop_max": 0}, "noop_max is 0"),
        ("TicTacToe-v1", {}, "has up to 2 players"),
        ("Cig-v1", {}, "is a match of several players, but only environments with one player"),
        ("MultiDuel-v1", {}, "is a match of several players"),
        ("D1Basic-v1", {"use_combined_action": False}, "takes continuous actions without bounds"),
    ],
)
def test_what_is_refused(env_id: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(env_id, 1, seed=0, options=options)


@pytest.mark.parametrize("env_id", ["sebulba/Catch", "sebulba/Memory", "CartPole-v1"])
@pytest.mark.parametrize("num_envs", [0, -1])
def test_num_envs_must_be_positive(env_id: str, num_envs: int) -> None:
    with pytest.raises(ValueError, match=f"num_envs is {num_envs}, but must be at least 1"):
        envs.make(env_id, num_envs, seed=0)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="atari_protocol is 'dqn', but must be one of machado"):
        envs.make(BREAKOUT, 1, seed=0, atari_protocol="dqn")
    with pytest.raises(ValueError, match="seed is -1"):
        envs.make("CartPole-v1", 1, seed=-1)
    with pytest.raises(ValueError, match=r"action has shape \(2,\), but must have shape \(3,\)"):
        envs.make("CartPole-v1", 3, seed=0).step(np.zeros(2, np.int32))


@pytest.mark.slow
def test_what_imports_envpool_is_free_again() -> None:
    """Else the first training of a process would keep all that it had on devices."""
    program = """
        import gc, weakref
        from sebulba.envs import envpool

        class Training:
            pass

        def train():
            training = Training()
            envpool.environment_ids()
            return weakref.ref(training)

        gc.disable()
        training = train()
        assert training() is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
