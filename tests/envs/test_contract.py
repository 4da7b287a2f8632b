"""An environment that does not give what its spec says is refused, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import ConfigError, envs
from sebulba.envs.contract import TimestepCheck, check_spec, check_timestep
from sebulba.runners.environments import with_dtypes_of_jax
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep

B = 3
SPEC = EnvSpec(ArraySpec((6, 6), np.dtype(np.uint8)), DiscreteSpec(2), B)
GOOD = Timestep(
    np.zeros((B, 6, 6), np.uint8), np.zeros(B, np.float32), np.ones(B, np.float32), np.ones(B, bool)
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation": np.zeros((B, 6, 6))}, r"observation is float64 \[3, 6, 6\].*uint8"),
        ({"observation": np.zeros((B, 5, 6), np.uint8)}, r"\[3, 5, 6\].*\[3, 6, 6\]"),
        ({"observation": np.zeros((1, 6, 6), np.uint8)}, r"\[1, 6, 6\].*\[3, 6, 6\]"),
        ({"observation": {"x": GOOD.observation}}, "make the one like the other"),
        ({"first": np.ones(B, np.uint8)}, r"first is uint8 \[3\].*bool"),
        ({"reward": np.zeros((B, 1))}, r"reward is float64 \[3, 1\] on reset.*numbers \[3\]"),
        ({"reward": np.array(["1"] * B)}, r"reward is <U1 \[3\].*numbers"),
        ({"observation": np.full((B, 6, 6), None)}, r"observation is object .*uint8"),
        ({"discount": np.float32(1)}, r"discount is float32 \[\].*\[3\]"),
    ],
)
def test_what_differs_from_the_spec_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_timestep(GOOD._replace(**changes), SPEC, "on reset")


def test_what_jax_takes_for_the_same_passes() -> None:
    check_timestep(GOOD, SPEC, "on reset")
    check_timestep(
        GOOD._replace(reward=np.zeros(B), discount=np.ones(B, np.int64)), SPEC, "on reset"
    )
    told = {"a": ArraySpec((2,), np.dtype(np.float32)), "b": ArraySpec((), np.dtype(np.int32))}
    given = {"a": np.zeros((B, 2)), "b": np.zeros(B, np.int64)}
    check_timestep(GOOD._replace(observation=given), SPEC._replace(observation=told), "on reset")
    with pytest.raises(ConfigError, match=r"observation\['b'\] is float32"):
        wrong = {**given, "b": np.zeros(B, np.float32)}
        check_timestep(
            GOOD._replace(observation=wrong), SPEC._replace(observation=told), "on reset"
        )


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (np.int64(2**40 + 7), r"environment 1 is 1099511627783 .* from -2147483648 to 2147483647"),
        (np.int64(-(2**31) - 1), "environment 1 is -2147483649 in step 1"),
        (np.uint64(2**32), "from 0 to 4294967295"),
        (np.float64(1e39), "environment 1 is 1e.39 in step 1: it must be finite, as a float of 32"),
        (np.int64(2**31 - 1), None),
        (np.uint64(2**32 - 1), None),
        (np.float64(1e38), None),
    ],
)
def test_numbers_that_would_become_others_in_32_bits_are_refused(number: Any, says: Any) -> None:
    spec = SPEC._replace(observation=ArraySpec((2,), number.dtype))
    check = TimestepCheck(spec)
    check.reset(GOOD._replace(observation=np.zeros((B, 2), number.dtype)))
    given = np.zeros((B, 2), number.dtype)
    given[1, 1] = number
    step = GOOD._replace(observation=given, first=np.zeros(B, np.bool_))
    if says is None:
        check.step(step)
        return
    with pytest.raises(ConfigError, match=says):
        check.step(step)


def test_an_observation_of_no_numbers_is_refused() -> None:
    nothing = ArraySpec((0,), np.dtype(np.float32))
    with pytest.raises(ConfigError, match=r"observation has the shape \(0,\): .* a number or more"):
        check_spec(SPEC._replace(observation=nothing))
    some = {"none": nothing, "one": ArraySpec((), np.dtype(np.int32))}
    with pytest.raises(ConfigError, match=r"observation\['none'\] has the shape \(0,\)"):
        check_spec(SPEC._replace(observation=some))


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_training_ends_with_it(method: str) -> None:
    class Bytes(envs.Catch):
        """Catch, whose observations are not the float32 of its spec."""

    def as_bytes(self: Any, *words: Any) -> Timestep:
        timestep: Timestep = getattr(envs.Catch, method)(self, *words)
        return timestep._replace(observation=timestep.observation.astype(np.uint8))

    setattr(Bytes, method, as_bytes)
    with pytest.raises(ConfigError, match=r"environment's observation is uint8 .* float32") as end:
        sebulba.train(tiny(), make_env=Bytes, topology=on(1), progress=False)
    assert any("actor-" in note for note in end.value.__notes__)


def test_a_spec_gets_the_dtypes_that_jax_has() -> None:
    told = {"a": ArraySpec((2,), np.dtype(np.float64)), "b": ArraySpec((), np.dtype(np.int64))}
    spec = with_dtypes_of_jax(SPEC._replace(observation=told))
    assert spec.observation == {
        "a": ArraySpec((2,), np.dtype(np.float32)),
        "b": ArraySpec((), np.dtype(np.int32)),
    }
    assert with_dtypes_of_jax(SPEC) == SPEC


@pytest.mark.parametrize(
    ("observation", "says"),
    [
        (ArraySpec((2,), np.dtype(object)), "observation is of dtype object.*whole numbers"),
        ({"x": ArraySpec((2,), np.dtype("U3"))}, r"observation\['x'\] is of dtype <U3"),
        ({"x": (3, 4)}, r"observation\['x'\] is \(3, 4\): it must be an ArraySpec"),
    ],
)
def test_a_spec_of_other_things_than_numbers_is_refused(observation: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_spec(SPEC._replace(observation=observation), B)


def test_huge_numbers_are_finite() -> None:
    check = TimestepCheck(SPEC)
    check.reset(GOOD)
    largest = np.full(B, np.finfo(np.float32).max)
    check.step(GOOD._replace(reward=largest, first=np.zeros(B, bool)))
    with pytest.raises(ConfigError, match=r"reward of environment 1 is inf in step 2"):
        reward = np.array([0, np.inf, 0], np.float32)
        nothing = np.zeros(B, np.float32)
        check.step(GOOD._replace(reward=reward, discount=nothing, first=np.zeros(B, bool)))


def test_environments_may_be_of_one_number_only() -> None:
    """A batch recorded or made elsewhere: only the actors must get as many as they ask for."""

    def always_four(num_envs: int, seed: int) -> Any:
        return envs.Catch(4, seed)

    config = tiny(envs_per_actor=4, batch_size=4)
    result = sebulba.train(config, make_env=always_four, topology=on(1), progress=False)
    assert result.metrics[-1]["steps"] >= config.total_steps
