"""Trainings that start with parameters which were learned before."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from whole_runs import on, tiny, tiny_ppo, tiny_pqn, tiny_r2d2

import sebulba
from sebulba import ConfigError, algorithms, envs
from sebulba.agents import distributions
from sebulba.agents.reference import is_reference
from sebulba.learners.r2d2 import R2D2Learner, R2D2State
from sebulba.runners import environments, training


def train(config: sebulba.Config, **parts: Any) -> sebulba.TrainResult:
    return sebulba.train(config, topology=on(1), progress=False, **parts)


def params_of(config: sebulba.Config, seed: int = 7) -> Any:
    """Fresh ones, of another seed than the config's, on no device."""
    spec = environments.probe(environments.default_make_env(config))
    agent = algorithms.of(config).make_agent(config, spec, "training")
    return jax.device_get(agent.init(jax.random.key(seed)))


def same(one: Any, other: Any) -> bool:
    equal = jax.tree.map(np.array_equal, jax.device_get(one), jax.device_get(other))
    return all(jax.tree.leaves(equal))


@pytest.mark.parametrize(
    "kind", [tiny, tiny_r2d2, tiny_ppo, pytest.param(tiny_pqn, marks=pytest.mark.slow)]
)
def test_every_algorithm_starts_with_them(kind: Any) -> None:
    config = kind()
    params = params_of(config)
    result = train(config, params=params, optimizer=optax.set_to_zero())
    assert same(result.params, params) and not same(params_of(config, config.seed), params)
    assert is_reference(result.agent)


def test_the_target_network_starts_with_them_too() -> None:
    params, states = params_of(tiny_r2d2()), []

    class Noted(R2D2Learner):
        def init(self, key: jax.Array) -> R2D2State:
            states.append(jax.device_get(super().init(key)))
            raise InterruptedError

    algorithm = dataclasses.replace(algorithms.R2D2, make_learner=Noted)
    with pytest.raises(InterruptedError):
        train(tiny_r2d2(), params=params, algorithm=algorithm)
    assert same(states[0].target, params) and same(states[0].train.params, params)


def test_of_a_run_and_of_an_agent_of_ones_own(tmp_path: Path) -> None:
    config = tiny(out=tmp_path / "first")
    train(config)
    first = sebulba.load(tmp_path / "first")
    spec = envs.probe(envs.Catch)

    class Own(sebulba.PolicyAgent):
        """The library's, and checked as one of the user's."""

    agent = Own(config.network, spec, distributions.make(spec.action))
    again = dataclasses.replace(config, out=None)
    result = train(again, params=first.params, agent=agent, optimizer=optax.set_to_zero())
    assert result.agent is agent and same(result.params, first.params)


def test_random_keys_may_be_among_them() -> None:
    config = tiny()
    spec = envs.probe(envs.Catch)

    class TypedKey(sebulba.PolicyAgent):
        def init(self, key: jax.Array) -> Any:
            return {"inner": super().init(key), "key": key}

    agent = TypedKey(config.network, spec, distributions.make(spec.action))
    given = agent.init(jax.random.key(3))
    fitting = training._pretrained(agent, given).init(jax.random.key(4))
    assert (jax.random.key_data(fitting["key"]) == jax.random.key_data(given["key"])).all()
    assert training._digest(given) == training._digest(fitting) != training._digest(None)


def test_a_resumed_run_goes_on_with_its_own(tmp_path: Path) -> None:
    config = tiny(out=tmp_path / "run", total_steps=40)
    params = params_of(config)
    train(config, params=params, optimizer=optax.set_to_zero())
    longer = dataclasses.replace(config, total_steps=80, resume=True)
    others = params_of(config, seed=8)
    assert same(train(longer, params=others, optimizer=optax.set_to_zero()).params, params)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"params": np.zeros(3)}, r"params is only there"),
        (None, r"kernel is float32\[\d+,7\] there and float32\[\d+,\d+\] here"),
        ("weights", r"params do not fit the agent"),
    ],
)
def test_others_are_refused(params: Any, says: str, tmp_path: Path) -> None:
    config = tiny(out=tmp_path / "run")
    if params is None:
        network = dataclasses.replace(config.network, hidden_sizes=(7,))
        params = params_of(tiny(network=network))
    with pytest.raises(ConfigError, match=says):
        train(config, params=params)
    assert not (tmp_path / "run").exists()
