"""Evaluation: whole episodes, each environment its share, true returns."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import faulty_envs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import (
    ActorOutput,
    CheckpointConfig,
    ConfigError,
    Evaluation,
    VTraceConfig,
    algorithms,
    envs,
)
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import load_config
from sebulba.runners import evaluation
from sebulba.runners.environments import with_last_action
from sebulba.types import ArraySpec, DiscreteSpec, Env, EnvSpec, MakeEnv, Timestep


class Known:
    """Environment i has episodes of i + 1 steps, each with a reward of 1 + the action."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.spec = EnvSpec(ArraySpec((1,), np.dtype(np.float32)), DiscreteSpec(2), num_envs)
        self.closed = False
        self._time = np.zeros(num_envs, np.int64)

    def reset(self) -> Timestep:
        return self._timestep(np.ones(len(self._time), bool), np.zeros(len(self._time)))

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        first = self._time == np.arange(len(self._time)) + 1
        self._time = np.where(first, 0, self._time + 1)
        return self._timestep(first, np.where(first, 0, 1 + action))

    def close(self) -> None:
        self.closed = True

    def _timestep(self, first: Any, reward: Any) -> Timestep:
        last = self._time == np.arange(len(self._time)) + 1
        observation = np.zeros((len(first), 1), np.float32)
        discount = np.where(last, 0, 1).astype(np.float32)
        return Timestep(observation, reward.astype(np.float32), discount, first)


class Always:
    """An agent that takes one action."""

    def __init__(self, action: int) -> None:
        self._action = action

    def initial_state(self, batch_size: int) -> Any:
        return ()

    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        action = jnp.full(timestep.first.shape, self._action, jnp.int32)
        return ActorOutput(action, ()), state


@pytest.mark.parametrize("action", [0, 1])
@pytest.mark.parametrize(
    ("episodes", "shares"), [(1, [1]), (3, [1, 1, 1]), (70, [3] * 6 + [2] * 26)]
)
def test_every_environment_plays_its_share(episodes: int, shares: list[int], action: int) -> None:
    result = sebulba.evaluate(Always(action), {}, Known, episodes)
    lengths = np.repeat(np.arange(len(shares)) + 1, shares)
    np.testing.assert_array_equal(np.sort(result.lengths), lengths)
    np.testing.assert_array_equal(result.returns, result.lengths * (1 + action))


def test_summary() -> None:
    returns = np.array([3.0, -1.0, 0.0, 10.0])
    summary = Evaluation(returns, np.array([1, 2, 3, 4])).summary()
    assert summary == {
        "episodes": 4,
        "mean": 3.0,
        # Deviations 0, 4, 3 and 7 from the mean; 3 degrees of freedom; the root of 4 episodes.
        "standard_error": pytest.approx(np.sqrt(74 / 3) / 2),
        "median": 1.5,
        "minimum": -1.0,
        "maximum": 10.0,
        "length_mean": 2.5,
    }


def test_one_episode_has_no_standard_error() -> None:
    summary = Evaluation(np.array([3.0]), np.array([5])).summary()
    assert np.isnan(summary["standard_error"]) and summary["mean"] == 3


@pytest.mark.parametrize("episodes", [0, -3])
def test_number_of_episodes_must_be_above_0(episodes: int) -> None:
    with pytest.raises(ConfigError, match=f"episodes is {episodes}: it must be above 0"):
        sebulba.evaluate(Always(0), {}, Known, episodes)


def test_environments_are_closed_also_after_a_failure() -> None:
    made = []

    class Breaks(Known):
        def step(self, action: Any) -> Timestep:
            raise RuntimeError("broken on purpose")

    def make_env(num_envs: int, seed: int) -> Known:
        made.append(Breaks(num_envs, seed))
        return made[-1]

    with pytest.raises(RuntimeError, match="broken on purpose"):
        sebulba.evaluate(Always(0), {}, make_env, 2)
    assert made[0].closed


def test_an_episode_that_does_not_end_is_cut_off() -> None:
    """Its environment starts no other one, so new ones play what is left of its share."""
    seeds = []

    def make_env(num_envs: int, seed: int) -> Known:
        seeds.append(seed)
        return Known(num_envs, seed)

    result = sebulba.evaluate(Always(1), {}, make_env, 40, seed=3, max_steps=30)
    # Those of 31 and 32 steps, which have one episode each; the first eight have two.
    assert result.cut_off == result.summary()["cut_off"] == 2
    lengths = [*range(1, 31), 30, 30, *range(1, 9)]
    np.testing.assert_array_equal(np.sort(result.lengths), np.sort(lengths))
    np.testing.assert_array_equal(result.returns, 2 * result.lengths)
    assert seeds == [3]
    result = sebulba.evaluate(Always(1), {}, make_env, 70, seed=3, max_steps=4)
    # Of 32 environments, 28 are cut off in each round. The first six have three episodes in the
    # first round, so that two of them leave two episodes for the next, and the others one.
    assert len(result.returns) == 70 and result.lengths.max() == 4
    assert len(seeds) > 2 and len(set(seeds[1:])) == len(seeds) - 1
    with pytest.raises(ConfigError, match=r"max_steps is 0.*above 0, or None.*--max-steps"):
        sebulba.evaluate(Always(1), {}, Known, 1, max_steps=0)


def test_without_a_bound_an_episode_has_108_000_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_FRAMES", 6)

    def make_env(num_envs: int, seed: int) -> Known:
        env = Known(num_envs, seed)
        env.spec = env.spec._replace(frame_skip=2)
        return env

    assert sorted(sebulba.evaluate(Always(0), {}, make_env, 5).lengths) == [1, 2, 3, 3, 3]


def test_atari_games_are_normalized() -> None:
    found = Evaluation(np.array([14.6, 14.6]), np.array([1, 1]), env="Pong-v5").summary()
    assert found["human_normalized"] == 1


@pytest.mark.parametrize("make_env", [faulty_envs.SameStep, faulty_envs.OneTooFew])
def test_faulty_environments_are_refused(make_env: Any) -> None:
    with pytest.raises(ConfigError, match=r"environment"):
        sebulba.evaluate(Always(0), {}, make_env, 2)


def actions_of(greedy: bool, seed: int) -> list[int]:
    """Actions of a policy with the probabilities 0.3, 0.4 and 0.3, in 32 episodes of Catch."""
    taken: list[int] = []

    class Recorded(envs.Catch):
        started = False

        def reset(self) -> Timestep:
            # Which calls ``step`` itself.
            timestep = super().reset()
            self.started = True
            return timestep

        def step(self, action: Any) -> Timestep:
            if self.started:
                taken.extend(np.asarray(action).tolist())
            return super().step(action)

    acts: algorithms.Acts = "greedily" if greedy else "evaluating"
    agent = algorithms.VTRACE.make_agent(tiny(), envs.Catch(1, 0).spec, acts)
    params = jax.tree.map(jnp.zeros_like, agent.init(jax.random.key(0)))
    params["PolicyValueHeads_0"]["Dense_0"]["bias"] = jnp.log(jnp.array([0.3, 0.4, 0.3]))
    sebulba.evaluate(agent, params, Recorded, 32, seed=seed)
    return taken


def test_greedy_takes_the_most_probable_action_and_sampling_all() -> None:
    assert set(actions_of(greedy=True, seed=0)) == {1}
    sampled = actions_of(greedy=False, seed=0)
    assert 0.25 < sampled.count(1) / len(sampled) < 0.55
    assert set(sampled) == {0, 1, 2}


def test_the_seed_decides() -> None:
    assert actions_of(False, seed=1) == actions_of(False, seed=1) != actions_of(False, seed=2)


def test_a_run_is_evaluated_at_its_last_checkpoint(tmp_path: Path) -> None:
    config = tiny(out=tmp_path, seed=5)
    trained = sebulba.train(config, progress=False, topology=on(4, 2))
    result = sebulba.evaluate_run(tmp_path, 40, seed=7)
    assert result.update == trained.updates
    direct = sebulba.evaluate(trained.agent, trained.params, envs.Catch, 40, seed=7)
    np.testing.assert_array_equal(result.returns, direct.returns)
    np.testing.assert_array_equal(result.lengths, direct.lengths)


def test_an_older_checkpoint_can_be_evaluated(tmp_path: Path) -> None:
    config = tiny(out=tmp_path, checkpoint=CheckpointConfig(interval=3))
    sebulba.train(config, progress=False, topology=on(1))
    assert sebulba.evaluate_run(tmp_path, 3, checkpoint=6).update == 6
    with pytest.raises(
        ConfigError, match=r"no checkpoint 4: it must be one of \[\d+, .*Set checkpoint, on"
    ):
        sebulba.evaluate_run(tmp_path, 3, checkpoint=4)
    # A number is no text of it.
    with pytest.raises(ConfigError, match=r"no checkpoint '6': it must be one of \[\d+, "):
        sebulba.evaluate_run(tmp_path, 3, checkpoint="6")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_that_wrote_no_checkpoint_is_refused(tmp_path: Path) -> None:
    sebulba.train(tiny(out=tmp_path), progress=False, topology=on(1))
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        checkpoint.rename(checkpoint.with_name(checkpoint.name + ".orbax-checkpoint-tmp"))
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        sebulba.evaluate_run(tmp_path, 1)


def lstm(**fields: Any) -> VTraceConfig:
    network = dataclasses.replace(tiny().network, core="lstm", core_size=4)
    return tiny(network=network, **fields)


def catch_with_the_last_action(num_envs: int, seed: int) -> Env:
    return envs.PreviousAction(envs.Catch(num_envs, seed))


class Wrapper:
    """Any wrapper around an environment whose observations have the action already."""

    def __init__(self, num_envs: int, seed: int) -> None:
        env = catch_with_the_last_action(num_envs, seed)
        self.spec, self.reset, self.step, self.close = env.spec, env.reset, env.step, env.close


@pytest.mark.parametrize("make_env", [envs.Catch, catch_with_the_last_action, Wrapper])
def test_environments_have_the_last_action_once_where_there_is_an_lstm(make_env: MakeEnv) -> None:
    spec = with_last_action(lstm(), make_env)(1, 0).spec
    assert spec == envs.PreviousAction(envs.Catch(1, 0)).spec
    assert with_last_action(tiny(), make_env) is make_env


@pytest.mark.parametrize("name", ["action", "last_action"])
def test_a_hint_that_is_called_an_action_is_not_the_last_action(name: str) -> None:
    class Hinted(envs.Catch):
        @property
        def spec(self) -> EnvSpec:
            seen = {
                "observation": super().spec.observation,
                name: ArraySpec((3,), np.dtype(np.float32)),
            }
            return super().spec._replace(observation=seen)

    spec = with_last_action(lstm(), Hinted)(1, 0).spec
    assert spec == envs.PreviousAction(Hinted(1, 0)).spec


@pytest.mark.slow
def test_an_lstm_sees_the_last_action_also_of_environments_of_ones_own(tmp_path: Path) -> None:
    usual = sebulba.train(lstm(out=tmp_path), progress=False, topology=on(1))
    result = sebulba.train(lstm(), progress=False, topology=on(1), make_env=envs.Catch)
    shapes = [jax.tree.map(jnp.shape, params) for params in (result.params, usual.params)]
    assert shapes[0] == shapes[1]
    assert len(sebulba.evaluate(result.agent, result.params, result.make_env, 3).returns) == 3
    for make_env in (None, envs.Catch):
        found = sebulba.evaluate_run(tmp_path, 3, greedy=True, make_env=make_env)
        assert len(found.returns) == 3


@pytest.mark.slow
def test_a_run_in_environments_of_ones_own_is_evaluated_in_them(tmp_path: Path) -> None:
    result = sebulba.train(tiny(out=tmp_path), progress=False, topology=on(1), make_env=Known)
    evaluation = sebulba.evaluate_run(tmp_path, 3, make_env=Known)
    assert evaluation.update == result.updates
    assert sorted(evaluation.lengths) == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"environments of your own.* Give make_env"):
        sebulba.evaluate_run(tmp_path, 3)
    again = dataclasses.replace(load_config(tmp_path), resume=True, total_steps=400)
    with pytest.raises(ConfigError, match=r"environments of your own.* Give make_env"):
        sebulba.train(again, progress=False, topology=on(1))
    more = sebulba.train(again, progress=False, topology=on(1), make_env=Known)
    assert more.updates > result.updates


def test_a_run_with_an_agent_of_ones_own_is_evaluated_with_it(tmp_path: Path) -> None:
    agent = sebulba.train(tiny(), progress=False, topology=on(1)).agent
    sebulba.train(tiny(out=tmp_path), progress=False, topology=on(1), agent=agent)
    assert len(sebulba.evaluate_run(tmp_path, 3, agent=agent).returns) == 3
    with pytest.raises(ConfigError, match=r"greedy is True, but PolicyAgent chooses"):
        sebulba.evaluate_run(tmp_path, 3, agent=agent, greedy=True)


def test_a_run_that_trains_may_remove_the_checkpoint_meanwhile(tmp_path: Path) -> None:
    result = sebulba.train(tiny(out=tmp_path), progress=False, topology=on(1), make_env=Known)

    class Removing(Known):
        def step(self, action: Any) -> Timestep:
            shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
            return super().step(action)

    evaluation = sebulba.evaluate_run(str(tmp_path), 3, make_env=Removing)
    assert evaluation.update == result.updates
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_a_newer_checkpoint_is_taken_where_the_newest_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run does that keeps one checkpoint: in the middle of its reading, and several times."""
    keeps_all = CheckpointConfig(interval=2, max_to_keep=99)
    sebulba.train(tiny(out=tmp_path, checkpoint=keeps_all), progress=False, topology=on(1))
    checkpoints = tmp_path / "checkpoints"
    *earlier, last = sorted(checkpoints.iterdir(), key=lambda path: int(path.name))
    for path in [*earlier[1:], last]:
        path.rename(tmp_path / path.name)
    read, reads = Checkpointer.restore_params, iter([*earlier[1:], last])

    def removed_meanwhile(self: Any, turn: int, params: Any) -> Any:
        newer = next(reads, None)
        if newer is not None:
            (tmp_path / newer.name).rename(newer)
            shutil.rmtree(checkpoints / str(turn) / "arrays")
        return read(self, turn, params)

    opened, vanished = Checkpointer.__init__, iter([str(last)])

    def listed_too_late(self: Any, *args: Any) -> None:
        for path in vanished:  # As Orbax says it, which looks at each of them when it begins.
            raise FileNotFoundError(2, "No such file or directory", path)
        opened(self, *args)

    monkeypatch.setattr(Checkpointer, "restore_params", removed_meanwhile)
    monkeypatch.setattr(Checkpointer, "__init__", listed_too_late)
    assert sebulba.evaluate_run(tmp_path, 1).update == int(last.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(VTraceConfig):
    """A class that this library does not know."""

    more: int = 3


@pytest.mark.slow
def test_a_run_with_a_config_of_ones_own_class_is_resumed_and_evaluated(tmp_path: Path) -> None:
    config = OwnConfig(**vars(tiny(out=tmp_path)), more=5)
    with pytest.raises(ConfigError, match=r"OwnConfig is the config of no algorithm.*register"):
        sebulba.train(config, progress=False, topology=on(1))
    own = dataclasses.replace(algorithms.VTRACE, name="own", config_class=OwnConfig)
    result = sebulba.train(config, progress=False, topology=on(1), algorithm=own)
    with pytest.raises(ConfigError, match=r"algorithm 'own' is unknown.*registers it first"):
        sebulba.evaluate_run(tmp_path, 3)
    assert len(sebulba.evaluate_run(tmp_path, 3, algorithm=own).returns) == 3
    saved = load_config(tmp_path, own)
    assert isinstance(saved, OwnConfig) and saved.more == 5
    again = dataclasses.replace(saved, resume=True, total_steps=2 * config.total_steps)
    more = sebulba.train(again, progress=False, topology=on(1), algorithm=own)
    assert more.updates > result.updates
