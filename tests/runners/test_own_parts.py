"""Whole runs with a researcher's own agent, environment, optimizer and learner."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import ActorOutput, ConfigError, PolicyValue, algorithms, envs
from sebulba.agents import distributions
from sebulba.agents.reference import Behavior
from sebulba.learners import PPOLearner, VTraceLearner
from sebulba.types import Env, EnvSpec, Timestep


def train(config: sebulba.Config, **parts: Any) -> sebulba.TrainResult:
    return sebulba.train(config, topology=on(1), progress=False, **parts)


class LinearAgent:
    """A researcher's own agent: one matrix, and no network library."""

    def __init__(self, spec: EnvSpec) -> None:
        self._policy = distributions.make(spec.action, "tanh")
        self._inputs = int(np.prod(spec.observation.shape))

    def init(self, key: jax.Array) -> Any:
        return {"matrix": jnp.zeros((self._inputs, self._policy.parameters_size + 1))}

    def initial_state(self, batch_size: int) -> Any:
        return ()

    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        policy = self._output(params, timestep).policy
        sample = self._policy.sample(key, policy)
        behavior = Behavior(self._policy.log_prob(policy, sample.raw), sample.raw)
        return ActorOutput(sample.action, behavior), state

    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        return self._output(params, timesteps), state

    def _output(self, params: Any, timestep: Timestep) -> PolicyValue:
        lead = timestep.first.shape
        output = timestep.observation.reshape(*lead, -1) @ params["matrix"]
        return PolicyValue(output[..., :-1], output[..., -1])


def test_own_agent_environment_and_optimizer() -> None:
    made: list[int] = []

    def make_env(num_envs: int, seed: int) -> Env:
        made.append(num_envs)
        return envs.Catch(num_envs, seed)

    agent = LinearAgent(envs.Catch(1, 0).spec)
    frozen = optax.sgd(0.0)
    config = tiny(env="what the config names is not made")
    result = train(config, agent=agent, make_env=make_env, optimizer=frozen)
    assert result.agent is agent
    assert sorted(made) == [1, 4, 4]
    assert not result.params["matrix"].any()
    moved = train(config, agent=agent, make_env=make_env, optimizer=optax.sgd(1e-2))
    assert moved.params["matrix"].any()


def test_own_learner_is_used() -> None:
    config = tiny()

    def make_learner(config: Any, *parts: Any) -> VTraceLearner:
        return VTraceLearner(dataclasses.replace(config, entropy_cost=0.5), *parts)

    algorithm = dataclasses.replace(algorithms.VTRACE, make_learner=make_learner)
    own, default = train(config, algorithm=algorithm), train(config)
    assert own.metrics[0]["loss"] < default.metrics[0]["loss"] - 0.2


class Unrelated:
    """It has the methods of a learner, and is none."""

    def __init__(self, *parts: Any) -> None:
        self._learner = VTraceLearner(*parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def test_a_learner_that_does_not_inherit_is_refused(tmp_path: Path) -> None:
    make_learner: Any = Unrelated
    algorithm = dataclasses.replace(algorithms.VTRACE, make_learner=make_learner)
    with pytest.raises(ConfigError, match=r"Unrelated.*inherit from sebulba\.Learner"):
        train(tiny(out=tmp_path / "run"), algorithm=algorithm)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"algorithm": "ppo"}, "algorithm is 'ppo': it must be a sebulba.Algorithm"),
        ({"make_env": "CartPole-v1"}, r"make_env is 'CartPole-v1': .* make_env\(num_envs, seed\)"),
        ({"optimizer": optax.adam}, "optimizer is <function adam.*GradientTransformation"),
    ],
)
def test_parts_of_another_kind_are_refused(parts: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        train(tiny(out=tmp_path / "run"), **parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [VTraceLearner, PPOLearner])
def test_a_learner_whose_base_was_not_initialized_is_refused(kind: Any, tmp_path: Path) -> None:
    class Forgetful(kind):
        def __init__(self, *parts: Any) -> None:
            self.mine = parts

    algorithm = dataclasses.replace(algorithms.VTRACE, make_learner=Forgetful)
    with pytest.raises(ConfigError, match=r"Forgetful\.__init__ .*super\(\)\.__init__\(\.\.\.\)"):
        train(tiny(out=tmp_path / "run"), algorithm=algorithm)
    assert not (tmp_path / "run").exists()
