from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_battery import EnvBattery, ended, random_action, rollout

from sebulba import envs
from sebulba.envs import EnvPoolEnv, envpool_spec
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


class TestBreakoutMachado(EnvBattery):
    num_steps = 8

    def make(self, seed: int) -> Env:
        return envs.make(BREAKOUT, 2, seed=seed, options={"max_episode_steps": 5})


class TestBreakoutImpala(EnvBattery):
    num_steps = 8

    def make(self, seed: int) -> Env:
        options = {"max_episode_steps": 5}
        return envs.make(BREAKOUT, 2, seed=seed, options=options, atari_protocol="impala")


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
    assert env.spec.observation["action"] == ArraySpec((), np.dtype(np.int32))
    assert not env.reset().observation["action"].any()
    for _ in range(9):
        timestep = env.step(np.array([1, 2]))
        np.testing.assert_array_equal(timestep.observation["action"], [1, 2])
    assert not env.step(np.array([1, 2])).observation["action"].any()


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


def config(env: Env) -> Any:
    return env._pool.spec.config  # type: ignore[attr-defined]


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


def test_vizdoom_has_one_discrete_action_and_single_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # It writes a file where it is started.
    env = envs.make("D1Basic-v1", 2, seed=0)
    assert env.spec.action == DiscreteSpec(6)
    names = (
        "NOTHING TURN_RIGHT TURN_LEFT MOVE_FORWARD MOVE_FORWARD+TURN_RIGHT MOVE_FORWARD+TURN_LEFT"
    )
    assert env.spec.action_names == tuple(names.split())
    assert env.spec.observation == ArraySpec((84, 84), np.dtype(np.uint8))
    frames = [env.reset().observation]
    frames += [env.step(np.full(2, action, np.int32)).observation for action in range(6)]
    assert all(frame.shape == (2, 84, 84) and frame.std() > 0 for frame in frames)
    assert any((frame != frames[0]).any() for frame in frames)
    env.close()


def test_vizdoom_names_its_actions() -> None:
    """As many names as EnvPool has actions, all of them different."""
    import envpool

    for env_id in ("D3Battle-v1", "Deathmatch-v1", "MyWayHome-v1", "TakeCover-v1"):
        for force_speed in (False, True):
            native = envpool.make_spec(env_id, use_combined_action=True, force_speed=force_speed)
            spec = envpool_spec.env_spec(native, 1)
            assert spec.action == DiscreteSpec(len(set(spec.action_names)))
    assert spec.action_names == ("NOTHING", "MOVE_RIGHT", "MOVE_LEFT")


# Its games are started by forks, which wait for the threads of OpenBLAS.
STARTS_GAMES = """
import numpy as np
import scipy.linalg.blas
from sebulba import envs

matrix = np.ones((600, 600))
for seed in range(4):
    matrix @ matrix, scipy.linalg.blas.dgemm(1.0, matrix, matrix)
    envs.make("D1Basic-v1", 4, seed=seed).close()
"""


@pytest.mark.slow
def test_vizdoom_starts_beside_linear_algebra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_GAMES]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=90)


BUSY_INTERPRETER = """
import sys, threading
from sebulba.envs import vizdoom

def compute():
    while True:
        sum(range(100))

sys.setswitchinterval(1e-6)
for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
for _ in range(50):
    vizdoom.prepare()
"""


def test_vizdoom_starts_beside_threads_that_want_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY_INTERPRETER]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)


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
