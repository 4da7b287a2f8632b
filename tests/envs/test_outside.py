"""Environments of other packages, by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import envs
from sebulba.validation import ConfigError

MODULE = """
import gymnasium
import numpy as np
from sebulba.envs import Catch

def catch(num_envs, seed, height=10):
    assert height == 7
    return Catch(num_envs, seed)

class Bandit(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {"arm": gymnasium.spaces.Discrete(3), "text": gymnasium.spaces.Text(5)}
    )
    action_space = gymnasium.spaces.MultiBinary(2)

    def reset(self, *, seed=None, options=None):
        return {"arm": 0, "text": "go"}, {}

    def step(self, action):
        assert action.shape == (2,) and action.dtype == np.int8
        return {"arm": 1, "text": "go"}, float(action[0]), True, False, {}

gymnasium.register("Bandit-v3", entry_point=Bandit)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arcade_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_by_module_and_name(module: None) -> None:
    env = envs.make("arcade_of_mine:catch", 3, seed=0, options={"height": 7})
    assert env.spec.num_envs == 3


def test_an_option_that_its_function_does_not_take(module: None) -> None:
    with pytest.raises(ConfigError, match=r"'heigth'.*takes \(num_envs, seed, height=10\)"):
        envs.make("arcade_of_mine:catch", 3, seed=0, options={"heigth": 7})


def test_a_gymnasium_id_of_a_module_is_trained_on(module: None) -> None:
    config = tiny(env="gymnasium:arcade_of_mine:Bandit-v3")
    result = sebulba.train(config, topology=on(1), progress=False)
    last = result.metrics[-1]
    assert last["episodes"] > 0 and last["episode_length_mean"] == 1


def test_a_module_is_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here_alone.py").write_text(MODULE.replace("Bandit-v3", "Bandit-v4"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert envs.make("gymnasium:here_alone:Bandit-v4", 3, seed=0).spec.num_envs == 3


@pytest.mark.parametrize(
    ("env_id", "options", "says"),
    [
        ("gymnasium:CartPol-v1", {}, "cannot be made .*CartPol.*"),
        ("gymnasium:CartPole-v1", {"zzz": 1}, "cannot be made .*zzz"),
        ("gymnasium:Pendulum-v1", {"g": "x", "processes": 0, "q": 1}, "cannot be made .*'q'"),
        (
            "dm_env:no_module_here:make",
            {},
            "'dm_env:no_module_here:make' cannot be found .*no_module_here.*as dm_env:module:name",
        ),
        ("json:no_name_here", {}, "no_name_here.*cannot be found"),
        (":x", {}, "cannot be found"),
    ],
)
def test_what_is_refused(env_id: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        envs.make(env_id, 1, seed=0, options=options)
