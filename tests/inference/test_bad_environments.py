"""Faulty environments end a whole training with an error that finds the fault, or do no harm."""

from __future__ import annotations

import dataclasses
from typing import Any

import faulty_envs
import numpy as np
import pytest
from faulty_envs import ENV, STEP, spoiled_by, with_spec, with_value
from whole_runs import assert_same, on, tiny, tiny_r2d2

import sebulba
from sebulba import ConfigError, NetworkConfig, TrainResult, envs
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec, Timestep

AUTO_RESET = "first False, and reset in the next step"
NOT_FINITE = "it must be finite"


def trained(make_env: Any, **changes: Any) -> TrainResult:
    config = tiny(actors_per_device=1, policy_lag="1", **changes)
    return sebulba.train(config, make_env=make_env, topology=on(1), progress=False)


def as_bytes(timestep: Timestep) -> Timestep:
    return timestep._replace(observation=timestep.observation.astype(np.uint8))


def cropped(timestep: Timestep) -> Timestep:
    return timestep._replace(observation=timestep.observation[:, 1:])


def column(timestep: Timestep) -> Timestep:
    return timestep._replace(reward=timestep.reward[:, None])


def listed(timestep: Timestep) -> Timestep:
    return timestep._replace(reward=timestep.reward.tolist())


def unset(timestep: Timestep) -> Timestep:
    return timestep._replace(first=np.zeros_like(timestep.first))


ALL = r"environments \[0, 1, 2, 3\]"
ONE = rf"environment {ENV}"
THERE = rf"{ONE} is {{}} in step {STEP}"
REFUSED = {
    "same step": (faulty_envs.SameStep, rf"reward of {ALL} is .* in step 9.*0 .*{AUTO_RESET}"),
    "same step, truncated": (faulty_envs.SameStepAfterTruncation, f"in step 9.*{AUTO_RESET}"),
    "one-step episodes": (faulty_envs.OneStepEpisodes, rf"reward of {ALL} .* in step 1\b"),
    "always first": (faulty_envs.AlwaysFirst, rf"{ALL} .* in step 1\b.*an episode of no steps"),
    "reward at reset": (with_value("reward", 1, 0), rf"reward of {ONE} is 1.0 on reset"),
    "discount at reset": (with_value("discount", 0, 0), rf"discount of {ONE} is 0.0 on reset"),
    "no first at reset": (spoiled_by(unset, 0), rf"first of {ALL} is False on reset"),
    "NaN reward": (with_value("reward", np.nan), f"reward of {THERE.format('nan')}.*{NOT_FINITE}"),
    "infinite reward": (with_value("reward", -np.inf), f"reward of {THERE.format('-inf')}"),
    "NaN discount": (with_value("discount", np.nan), f"discount of {THERE.format('nan')}"),
    "NaN observation": (
        with_value("observation", np.nan),
        f"observation of {THERE.format('nan')}.*{NOT_FINITE}",
    ),
    "infinite observation": (
        with_value("observation", np.inf),
        f"observation of {THERE.format('inf')}",
    ),
    "other dtype": (spoiled_by(as_bytes), rf"observation is uint8 .* in step {STEP}\b.* float32"),
    "other shape": (spoiled_by(cropped), rf"observation is .*\[4, 9, 5\] in step {STEP}\b"),
    "column of rewards": (spoiled_by(column), rf"reward is .*\[4, 1\] in step {STEP}\b"),
    "list of rewards": (spoiled_by(listed), rf"reward is a list in step {STEP}\b.*NumPy"),
    "too few": (faulty_envs.OneTooFew, "num_envs is 3, and 4 were asked for"),
}


# Each of them is a whole training, so the others are run before a merge only.
QUICK = ("same step", "one-step episodes", "NaN reward", "other shape", "too few")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in REFUSED],
)
def test_what_is_refused(fault: str) -> None:
    make_env, says = REFUSED[fault]
    with pytest.raises(ConfigError, match=says) as end:
        trained(make_env)
    assert any("actor-0" in note for note in end.value.__notes__)


def test_the_note_says_after_how_many_steps_an_environment_failed() -> None:
    with pytest.raises(OSError, match="crashed") as end:
        trained(faulty_envs.Raising)
    (note,) = end.value.__notes__
    assert "actor-0" in note and f"after {STEP - 1} steps" in note


PAIR = with_spec(observation=(ArraySpec((10, 5), np.dtype(np.float32)),) * 2)
SEVERAL = with_spec(action=(DiscreteSpec(3), DiscreteSpec(2)))


@pytest.mark.parametrize("config", [tiny(), tiny_r2d2()])
@pytest.mark.parametrize(
    ("make_env", "core", "says"),
    [
        (PAIR, "none", r"observation is \(ArraySpec.*must be an ArraySpec.* or a dict of them"),
        (SEVERAL, "none", r"action .*\(DiscreteSpec.*: .*DiscreteSpec or a BoxSpec"),
        (SEVERAL, "lstm", r"action .*\(DiscreteSpec.*: .*DiscreteSpec or a BoxSpec"),
    ],
)
def test_a_spec_that_is_not_supported(config: Any, make_env: Any, core: Any, says: str) -> None:
    network = dataclasses.replace(config.network, core=core)
    config = dataclasses.replace(config, network=network)
    with pytest.raises(ConfigError, match=says):
        sebulba.train(config, make_env=make_env, topology=on(1), progress=False)


SAME_BITS = [faulty_envs.ReusingItsBuffers, faulty_envs.Float64]


@pytest.mark.slow
@pytest.mark.parametrize("make_env", SAME_BITS)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_what_does_no_harm(make_env: Any, core: Any) -> None:
    """Other memory or wider numbers: every bit that is learned is the same."""
    network = NetworkConfig(hidden_sizes=(8,), core=core, core_size=8)
    expected, result = (trained(make, network=network) for make in (envs.Catch, make_env))
    assert_same(result.params, expected.params)
    for row, other in zip(result.metrics, expected.metrics, strict=True):
        for name in ("steps", "loss", "episode_return_mean", "episode_length_mean"):
            assert row[name] == other[name]


@pytest.mark.slow
def test_buffers_used_again_do_no_harm_in_a_replay() -> None:
    config = tiny_r2d2(actors_per_device=1, policy_lag="1", total_steps=600)
    expected, result = (
        sebulba.train(config, make_env=make, topology=on(1), progress=False)
        for make in (envs.Catch, faulty_envs.ReusingItsBuffers)
    )
    assert_same(result.params, expected.params)


@pytest.mark.parametrize(
    ("make_env", "ends"),
    [
        (faulty_envs.NeverEnding, False),
        (faulty_envs.NeverFirst, False),
        (faulty_envs.NeverTerminating, True),
    ],
)
def test_episodes_that_do_not_end_are_trained_on(make_env: Any, ends: bool) -> None:
    """A game may go on after a lost life, for ever, or be cut off without an end."""
    result = trained(make_env)
    last = result.metrics[-1]
    assert last["steps"] >= 200
    assert (last["episodes"] > 0) == ends
    assert (last["episode_return_mean_100"] is not None) == ends


class Nested(faulty_envs.Around):
    """Catch with two actions at once, whose board is in a dict of a dict."""

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        return spec._replace(
            observation={"board": {"cells": spec.observation}}, action=MultiDiscreteSpec((3, 2))
        )

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        assert action.dtype == np.int32 and action.shape[1:] == (2,) and action.max() < 3
        return super().step(action[:, 0])

    def spoiled(self, timestep: Timestep) -> Timestep:
        return timestep._replace(observation={"board": {"cells": timestep.observation}})


@pytest.mark.parametrize("core", [pytest.param("none", marks=pytest.mark.slow), "lstm"])
def test_nested_observations_and_several_actions_are_trained_on(core: Any) -> None:
    network = NetworkConfig(hidden_sizes=(8,), core=core, core_size=8)
    config = tiny(network=network)
    result = sebulba.train(config, make_env=Nested, topology=on(1), progress=False)
    assert result.metrics[-1]["steps"] >= config.total_steps


def test_q_learning_takes_one_discrete_action() -> None:
    with pytest.raises(ConfigError, match=r"MultiDiscreteSpec.*one discrete action"):
        sebulba.train(tiny_r2d2(), make_env=Nested, topology=on(1), progress=False)
