"""Agents that are wrong on purpose are refused with the rule that they break; ours are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from whole_runs import on, tiny, tiny_pqn

import sebulba
from sebulba import (
    ActorOutput,
    Behavior,
    ConfigError,
    NetworkConfig,
    PolicyValue,
    algorithms,
    envs,
)
from sebulba.agents import distributions
from sebulba.agents.forms import check_forms
from sebulba.agents.reference import PolicyAgent
from sebulba.runners.environments import default_make_env, probe
from sebulba.types import ArraySpec, EnvSpec, MultiDiscreteSpec, Timestep

POLICY = distributions.Categorical(3)


class Recurrent:
    """A network with a state, in plain JAX, that learns Catch's three actions."""

    observes_last_action = True

    def init(self, key: jax.Array) -> Any:
        shapes = {"in": (50, 8), "action": (3, 8), "again": (8, 8), "out": (8, 4)}
        # A policy that is uniform at first, as many are, which hides most mistakes.
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}

    def initial_state(self, batch_size: int) -> Any:
        return jnp.zeros((batch_size, 8))

    def cell(self, params: Any, timestep: Timestep, state: Any) -> tuple[Any, Any]:
        state = self.begun(timestep.first, state)
        seen = timestep.observation["observation"].reshape(*state.shape[:-1], 50)
        action = jax.nn.one_hot(timestep.observation["last_action"], 3)
        inputs = seen @ params["in"] + action @ params["action"]
        state = jnp.tanh(inputs + state @ params["again"])
        out = state @ params["out"]
        return state, PolicyValue(out[..., :3], out[..., 3])

    def begun(self, first: Any, state: Any) -> Any:
        return jnp.where(first[..., None], 0, state)

    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        state, output = self.cell(params, timestep, state)
        sample = POLICY.sample(key, output.policy)
        log_prob = POLICY.log_prob(output.policy, sample.raw)
        return ActorOutput(sample.action, Behavior(log_prob, sample.raw)), state

    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        state, output = jax.lax.scan(lambda s, t: self.cell(params, t, s), state, timesteps)
        return output, state


class UnrollIgnoresFirst(Recurrent):
    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        never = timesteps._replace(first=jnp.zeros_like(timesteps.first))
        return super().unroll(params, never, state)


class UnrollIgnoresFirstWithin(Recurrent):
    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        only = timesteps.first.at[1:].set(False)
        return super().unroll(params, timesteps._replace(first=only), state)


class ActIgnoresFirst(Recurrent):
    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        never = timestep._replace(first=jnp.zeros_like(timestep.first))
        return super().act(params, key, never, state)


class StandsStill(Recurrent):
    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        return super().act(params, key, timestep, state)[0], state


class OfAnotherAction(Recurrent):
    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        after, output = self.cell(params, timestep, state)
        action = POLICY.sample(key, output.policy).action
        log_prob = POLICY.log_prob(output.policy, (action + 1) % 3)
        return ActorOutput(action, Behavior(log_prob, action)), after


class ActionOfTheNextStep(Recurrent):
    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        observation = dict(timesteps.observation)
        observation["last_action"] = jnp.roll(observation["last_action"], -1, axis=0)
        return super().unroll(params, timesteps._replace(observation=observation), state)


class _Changed(Recurrent):
    """With another output of ``act``."""

    change: Callable[[ActorOutput], ActorOutput]

    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        output, state = super().act(params, key, timestep, state)
        return type(self).change(output), state


class OutOfRange(_Changed):
    change = staticmethod(lambda output: output._replace(action=output.action + 1))


class RawIsAnotherAction(_Changed):
    change = staticmethod(lambda output: output._replace(action=output.action * 0))


class Half(_Changed):
    @staticmethod
    def change(output: ActorOutput) -> ActorOutput:
        log_prob = output.extras.log_prob.astype(jnp.float16)
        return output._replace(extras=output.extras._replace(log_prob=log_prob))


class OneTooManyAxes(_Changed):
    change = staticmethod(lambda output: output._replace(action=output.action[:, None]))


class SaysNothing(_Changed):
    change = staticmethod(lambda output: output._replace(extras=()))


class CannotUnroll(Recurrent):
    unroll: Any = None


def test_a_right_agent_is_not_refused() -> None:
    sebulba.check_agent(Recurrent(), tiny())


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (UnrollIgnoresFirst, "unroll must zero the recurrent state where timestep.first"),
        (UnrollIgnoresFirstWithin, "unroll must zero the recurrent state where timestep.first"),
        (ActIgnoresFirst, "act must zero the recurrent state where timestep.first"),
        (StandsStill, "act returns the recurrent state that it gets"),
        (
            OfAnotherAction,
            r"log-probability of the action is .* as act says and .* apart in lane 0",
        ),
        (ActionOfTheNextStep, "unroll must compute what act did"),
        (OutOfRange, r"action of environment \d is 3 in step \d.*it must be from 0 to 2"),
        (RawIsAnotherAction, "by raw in the extras"),
        (Half, r"log_prob in the extras of act is float16\[4\]; it must be float32\[4\]"),
        (OneTooManyAxes, r"the action of act is int32\[4, 1\]; it must be int32\[4\]"),
        (
            CannotUnroll,
            "CannotUnroll: unroll is None; it must be a function, as sebulba.Agent says",
        ),
        (object, "object: init is missing; it must be a function"),
        (lambda: OutOfRange, r"agent is the class OutOfRange: it must be an object, such as Out"),
        (SaysNothing, "tuple without log_prob and raw.*sebulba.Behavior"),
    ],
)
def test_a_wrong_agent_is_refused_with_its_rule(kind: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        sebulba.check_agent(kind(), tiny())


def test_values_of_several_actions_are_refused() -> None:
    """Q-learning takes the best of one discrete action."""
    spec = EnvSpec(ArraySpec((3,), np.dtype(np.float32)), MultiDiscreteSpec((2, 3)), 4)
    with pytest.raises(ConfigError, match=r"MultiDiscreteSpec.*one discrete action"):
        agent = PolicyAgent(NetworkConfig(), spec, distributions.make(spec.action))
        check_forms(agent, spec, "values")


def test_an_agent_that_differs_on_purpose_says_so() -> None:
    class Dropout(OfAnotherAction):
        is_replayed_exactly = False

    sebulba.check_agent(Dropout(), tiny())


def test_an_agent_for_other_observations_is_told_of_the_last_action() -> None:
    class Plain(Recurrent):
        observes_last_action = False

    with pytest.raises(Exception) as caught:
        sebulba.check_agent(Plain(), tiny())
    assert "observes_last_action = True" in "".join(caught.value.__notes__)


class Nested:
    """Catch, twice in a dict, of which one part is a dict."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self._env = envs.Catch(num_envs, seed)
        seen = self._env.spec.observation
        self.spec = self._env.spec._replace(observation={"a": seen, "b": {"c": seen}})
        self.close = self._env.close

    def reset(self) -> Timestep:
        return self._nested(self._env.reset())

    def step(self, action: Any) -> Timestep:
        return self._nested(self._env.step(action))

    def _nested(self, timestep: Timestep) -> Timestep:
        seen = timestep.observation
        return timestep._replace(observation={"a": seen, "b": {"c": seen}})


def with_network(config: sebulba.Config, **fields: Any) -> sebulba.Config:
    return dataclasses.replace(config, network=dataclasses.replace(config.network, **fields))


@pytest.mark.parametrize(
    ("config", "make_env"),
    [
        pytest.param(
            with_network(tiny(), core="lstm", core_size=8, normalize_observations=True),
            None,
            marks=pytest.mark.slow,
        ),
        (with_network(tiny(), normalize_observations=True), Nested),
        # The last action is an array of floats too.
        (
            with_network(
                tiny(env="Pendulum-v1"), core="lstm", core_size=8, normalize_observations=True
            ),
            None,
        ),
        pytest.param(
            with_network(tiny_pqn(), dtype="bfloat16", core="lstm", core_size=8),
            None,
            marks=pytest.mark.slow,
        ),
        pytest.param(tiny(env="Pendulum-v1"), None, marks=pytest.mark.slow),
        pytest.param(sebulba.presets.get("r2d2-atari-small"), None, marks=pytest.mark.slow),
    ],
)
def test_the_librarys_own_agents_are_right(config: sebulba.Config, make_env: Any) -> None:
    config = dataclasses.replace(config, envs_per_actor=4, batch_size=4)
    of_config = default_make_env(config) if make_env is None else make_env
    agent = algorithms.of(config).make_agent(config, probe(of_config), "training")
    sebulba.check_agent(agent, config, make_env=make_env)


class Own(PolicyAgent):
    """The library's, as one's own."""


class WrongInOneEnvironment(PolicyAgent):
    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        output, state = super().act(params, key, timestep, state)
        behavior: Any = output.extras
        wrong = jnp.arange(len(timestep.first)) == 7
        extras = behavior._replace(log_prob=behavior.log_prob - wrong)
        return output._replace(extras=extras), state


def made(kind: type[PolicyAgent], config: sebulba.Config) -> PolicyAgent:
    return kind(config.network, probe(default_make_env(config)), POLICY)


def test_training_checks_every_shard() -> None:
    config = tiny(envs_per_actor=12, batch_size=12, num_microbatches=2)
    where = r"1 apart in lane \d, step \d, environment 7\)"
    with pytest.raises(ConfigError, match=where):
        agent = made(WrongInOneEnvironment, config)
        sebulba.train(config, agent=agent, topology=on(4, 2), progress=False)


@pytest.mark.slow
def test_what_acted_is_checked_also_in_a_run_that_goes_on(tmp_path: Path) -> None:
    """With a lag of 1, its first actors have the parameters and moments of the turn before."""
    config = with_network(tiny(policy_lag="1", out=tmp_path), normalize_observations=True)
    rates = sebulba.OptimizerConfig(name="adam", learning_rate=0.3, decay_to_zero=False)
    config = dataclasses.replace(config, optimizer=rates)
    agent = made(Own, config)
    sebulba.train(config, agent=agent, topology=on(1), progress=False)
    more = dataclasses.replace(config, total_steps=220, resume=True)
    result = sebulba.train(more, agent=agent, topology=on(1), progress=False)
    assert np.isfinite(result.metrics[-1]["loss"] or np.nan)
