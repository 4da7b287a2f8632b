"""Checks that environments return what their spec says, and keep the contract of ``Env``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sebulba.envs.base import named_arrays
from sebulba.types import (
    ActionSpec,
    ArraySpec,
    BoxSpec,
    EnvSpec,
    MultiDiscreteSpec,
    Timestep,
)
from sebulba.validation import ConfigError

_RESET = "on reset"
_ON_RESET = {
    "reward": "No action has been rewarded yet.",
    "discount": "It is 0 only in the step that terminates an episode: return 1 - terminated.",
}
_AUTO_RESET = (
    "Return the last timestep of an episode, with its reward, with first False, and reset in the "
    "next step, which ignores its action."
)


class TimestepCheck:
    """Checks all that one batch of environments returns, in the order in which they return it.

    Whatever goes wrong here would otherwise be learned from without a word: trajectories are stored
    as the spec says, and what arrives with ``first`` is masked out of every loss.

    Attributes:
      steps: timesteps so far that were right, without that of the reset.
    """

    def __init__(self, spec: EnvSpec) -> None:
        """``spec`` says what the environments should return."""
        self.steps = 0
        self._spec = spec
        self._forms: Any = None  # Of the last timestep that was compared with the spec.
        self._floats: list[int] = []  # Which of its arrays may hold what is not finite,
        self._wide: list[int] = []  # ... and which whole numbers that JAX would cut off.
        self._started: Any = None  # Where ``first`` was set in the last timestep; None if nowhere.

    def reset(self, timestep: Timestep) -> None:
        """Check what ``Env.reset`` returned.

        Raises:
          ConfigError: as ``step``; or an episode does not start.
        """
        self._check(timestep, _RESET)
        if not timestep.first.all():
            raise ConfigError(
                f"the first of {_named(~timestep.first)} is False on reset: it must be True where "
                "an episode starts. Start one in every environment."
            )

    def step(self, timestep: Timestep) -> None:
        """Check what ``Env.step`` returned.

        Raises:
          ConfigError: it is not as the spec says, a number is not finite, or an episode starts with
            a reward or a discount of the one before or right after another start. The message says
            where and in which step.
        """
        self._check(timestep, f"in step {self.steps + 1}")
        self.steps += 1

    def _check(self, timestep: Timestep, when: str) -> None:
        # Called in each step, so it takes as few calls of NumPy as it can. The arrays are compared
        # with the spec only where their form differs from that of the last ones.
        if not isinstance(timestep, Timestep):
            raise ConfigError(
                f"the environment returned a {type(timestep).__name__} {when}: it must be a "
                "sebulba.Timestep. For environments of Gymnasium there is "
                "sebulba.envs.GymnasiumEnv."
            )
        arrays = _arrays(timestep)
        forms = [
            (name, getattr(array, "shape", None), getattr(array, "dtype", None))
            for name, array in arrays
        ]
        if forms != self._forms:
            check_timestep(timestep, self._spec, when)
            self._forms = forms
            self._floats = [i for i, (_, array) in enumerate(arrays) if _is_float(array.dtype)]
            self._wide = [
                i
                for i, (name, array) in enumerate(arrays)
                if name.startswith("observation") and _is_wide(array.dtype)
            ]
        for index in self._floats:
            array = arrays[index][1]
            if np.count_nonzero(_is_finite(array)) < array.size:
                _refuse_infinite(timestep, when)
        for index in self._wide:
            _check_width(*arrays[index], when)
        if np.count_nonzero(timestep.first):
            _check_starts(timestep, self._started, when)
            self._started = np.array(timestep.first)  # A copy, since some use their arrays again.
        else:
            self._started = None


def check_spec(spec: EnvSpec, num_envs: int | None = None) -> None:
    """Check what environments say of themselves.

    Args:
      spec: what they say.
      num_envs: how many were asked for; None if any number will do.

    Raises:
      ConfigError: an observation has no shape and dtype or is not of numbers, the actions have no
        spec, or there are more or fewer environments.
    """
    if not isinstance(spec, EnvSpec):
        raise ConfigError(
            f"the environment's spec is a {type(spec).__module__}.{type(spec).__name__}: it must "
            "be a sebulba.EnvSpec. Give the environment a property that returns one; one of "
            "Gymnasium becomes such an environment by sebulba.envs.GymnasiumEnv(make, num_envs, "
            "seed)."
        )
    observed = [] if spec.observation is None else named_arrays(spec.observation)
    if not observed:
        raise ConfigError(
            f"the environment's observation is {spec.observation!r}, but it must have an array or "
            "more; texts and empty arrays of Gymnasium and dm_env are left out. Observe something "
            "else too, or a constant, if there is nothing to see."
        )
    for path, told in observed:
        _check_array_spec(f"the environment's observation{path}", told)
        if not math.prod(told.shape):
            raise ConfigError(
                f"the environment's observation{path} has the shape {told.shape}: it must have a "
                "number or more. Leave it out, or observe a constant, if there is nothing to see."
            )
    if not isinstance(spec.action, ActionSpec):
        raise ConfigError(
            f"the environment's action is {spec.action!r}: it must be a DiscreteSpec, a "
            "MultiDiscreteSpec or a BoxSpec. Give one in its spec."
        )
    if rule := _broken_by(spec.action):
        raise ConfigError(f"the environment's action is {spec.action!r}: {rule}. Correct its spec.")
    if num_envs is not None and spec.num_envs != num_envs:
        raise ConfigError(
            f"the environment's num_envs is {spec.num_envs}, and {num_envs} were asked for: make "
            "as many as make_env is told to."
        )


def _check_array_spec(name: str, told: Any) -> None:
    if not isinstance(told, ArraySpec):
        raise ConfigError(
            f"{name} is {told!r}: it must be an ArraySpec, with the shape and the dtype of an "
            "array, or a dict of them. Give one in its spec."
        )
    if not isinstance(told.shape, tuple) or not all(map(_is_count, told.shape)):
        raise ConfigError(
            f"{name} has shape {told.shape!r}: it must be a tuple of whole numbers. Correct its "
            "spec."
        )
    if not _is_numeric(told.dtype):
        raise ConfigError(
            f"{name} is of dtype {told.dtype}: it must be of bool, whole numbers or floats. "
            "Convert it in the environment."
        )


def _broken_by(spec: ActionSpec) -> str | None:
    """The rule that the spec of an action breaks, if it does."""
    if isinstance(spec, BoxSpec):
        arrays = all(isinstance(bound, np.ndarray) for bound in spec)
        if not arrays or spec.low.shape != spec.high.shape or not np.all(spec.low < spec.high):
            return "its bounds must be arrays of one shape, each low below its high"
        if not spec.low.size:
            return "its bounds must be of one number or more"
        return None
    several = isinstance(spec, MultiDiscreteSpec)
    numbers: Any = spec.num_actions if several else (spec.num_actions,)
    if not isinstance(numbers, tuple) or not numbers:
        return "num_actions must be a tuple of one number or more"
    if not all(_is_count(number) and number > 0 for number in numbers):
        return "there must be a whole number of actions, 1 or more"
    return None


def _is_count(number: Any) -> bool:
    return isinstance(number, int | np.integer) and bool(number >= 0)


def check_timestep(timestep: Timestep, spec: EnvSpec, when: str) -> None:
    """Check that ``timestep`` has the structure, shapes and dtypes of ``spec``.

    Dtypes that JAX makes the same by default (such as float64 and float32) are equal here.

    Args:
      timestep: what an environment returned.
      spec: what it said that it would return.
      when: "in step 3", for the message.

    Raises:
      ConfigError: an array differs. The message says which, how it is and how it should be.
    """
    # The actor acts on what the environment returns, but trajectories are stored as the spec says:
    # other dtypes would be converted, and smaller arrays leave zeros around them. So without this
    # check the learner could learn, without any error, from other data than the actor saw.
    if _structure(timestep.observation) != _structure(spec.observation):
        raise ConfigError(
            f"the environment's observation is {_structure(timestep.observation)} {when}, and its "
            f"spec says {_structure(spec.observation)}: make the one like the other."
        )
    told = named_arrays(spec.observation)
    for (path, array), (_, one) in zip(named_arrays(timestep.observation), told, strict=True):
        name = f"observation{path}"
        _check_array(name, array, (spec.num_envs, *one.shape), one.dtype, when)
    _check_array("first", timestep.first, (spec.num_envs,), np.bool_, when)
    for name, number in (("reward", timestep.reward), ("discount", timestep.discount)):
        # Any dtype will do, since agents and learners get float32 in any case.
        _check_array(name, number, (spec.num_envs,), None, when)


def check_action(
    action: np.ndarray[Any, Any], spec: ActionSpec, when: str, first_env: int = 0
) -> None:
    """Check that actions ``[B, ...]`` are among those that ``spec`` allows.

    Args:
      action: what an agent returned.
      spec: of the environments that are to take it.
      when: "in step 3", for the message.
      first_env: the number of the first of these environments.

    Raises:
      ConfigError: one is not. The message says which, and what is allowed.
    """
    if isinstance(spec, BoxSpec):
        low, high = spec.low, spec.high
    else:
        low, high = np.array(0), np.array(spec.num_actions) - 1
    # ~(...) and not < or >, since NaN is neither.
    wrong = ~((action >= low) & (action <= high))
    if wrong.any():
        env, *place = np.argwhere(wrong)[0]
        bounds = [np.broadcast_to(bound, action.shape[1:])[tuple(place)] for bound in (low, high)]
        raise ConfigError(
            f"the action of environment {first_env + env} is {action[(env, *place)]} {when}: it "
            f"must be from {bounds[0]} to {bounds[1]}, as the environment's spec says. Correct "
            "what the agent's act returns, or the spec."
        )


def _check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any, when: str) -> None:
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise ConfigError(
            f"the environment's {name} is a {type(array).__name__} {when}: it must be an array of "
            "NumPy. Convert it with numpy.asarray."
        )
    if array.shape != shape or not _fits(array.dtype, dtype):
        told = "numbers" if dtype is None else np.dtype(dtype)
        raise ConfigError(
            f"the environment's {name} is {array.dtype} {list(array.shape)} {when}, and its spec "
            f"says {told} {list(shape)}: make the one like the other."
        )


def _fits(given: Any, wanted: Any) -> bool:
    if wanted is None or not _is_numeric(given):
        return wanted is None and _is_numeric(given)
    return _of_jax(given) == _of_jax(wanted)


def _of_jax(dtype: Any) -> np.dtype[Any]:
    """What JAX makes of a dtype by default: no number has more than 32 bits."""
    dtype = np.dtype(dtype)
    return np.dtype(f"{dtype.kind}4") if dtype.kind in "iuf" and dtype.itemsize == 8 else dtype


def _is_numeric(dtype: Any) -> bool:
    # bfloat16 and the like, which are no dtypes of NumPy's own, can be cast too.
    try:
        return bool(np.can_cast(dtype, np.float32, "same_kind"))
    except TypeError:  # No dtype at all.
        return False


def _is_wide(dtype: Any) -> bool:
    return dtype.kind in "iu" and bool(dtype.itemsize > 4)


def _is_float(dtype: Any) -> bool:
    return not np.can_cast(dtype, np.int64, "same_kind")


def _structure(observation: Any) -> Any:
    """The names of the arrays of an observation, with the kinds of dicts that they are in."""
    if not isinstance(observation, Mapping):
        return "an array"
    names = {name: _structure(part) for name, part in sorted(observation.items())}
    kind = type(observation).__name__
    return names if kind == "dict" else {f"({kind})": names}


def _arrays(timestep: Timestep) -> list[tuple[str, Any]]:
    """The arrays of a timestep with their names."""
    observation = timestep.observation
    return [
        *((f"observation{path}", array) for path, array in named_arrays(observation)),
        ("reward", timestep.reward),
        ("discount", timestep.discount),
        ("first", timestep.first),
    ]


def _check_starts(timestep: Timestep, before: Any, when: str) -> None:
    """Check the environments whose episodes start; ``before`` is where they did a step ago."""
    first = timestep.first
    if np.count_nonzero(timestep.reward[first]):
        _refuse_start("reward", timestep.reward, 0, first, when)
    if np.count_nonzero(timestep.discount[first] != 1):
        _refuse_start("discount", timestep.discount, 1, first, when)
    if before is not None and np.count_nonzero(first & before):
        raise ConfigError(
            f"the first of {_named(first & before)} is True {when} as in the one before, which is "
            f"an episode of no steps: an episode needs one. {_AUTO_RESET}"
        )


def _refuse_start(name: str, array: Any, due: int, first: Any, when: str) -> None:
    """Raise the error about the field ``name``, which is not ``due`` where an episode starts."""
    wrong = first & (np.asarray(array) != due)
    remedy = _ON_RESET[name] if when == _RESET else _AUTO_RESET
    raise ConfigError(
        f"the {name} of {_named(wrong)} is {np.asarray(array)[wrong][0]} {when}, where an episode "
        f"starts: it must be {due} there, since nothing is learned from what arrives with first. "
        f"{remedy}"
    )


def _refuse_infinite(timestep: Timestep, when: str) -> None:
    """Raise the error about the first array of ``timestep`` that is not finite, if there is one."""
    for name, given in _arrays(timestep):
        array = np.asarray(given)
        finite = _is_finite(array)
        if not finite.all():
            wrong = ~finite.reshape(len(array), -1).all(axis=1)
            raise ConfigError(
                f"the {name} of {_named(wrong)} is {array[~finite][0]} {when}: it must be finite, "
                "as a float of 32 bits, or the network's weights would not stay so. Correct the "
                "environment, or replace such numbers there."
            )


def _is_finite(array: Any) -> Any:
    """Of each number, whether it is finite and stays so in the 32 bits that JAX has for it."""
    if array.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    return np.isfinite(array)


def _check_width(name: str, array: Any, when: str) -> None:
    """Raise the error about whole numbers of 64 bits that are others in 32, if there are any."""
    narrow = _of_jax(array.dtype)
    wrong = array.astype(narrow) != array
    if np.count_nonzero(wrong):
        envs = wrong.reshape(len(array), -1).any(axis=1)
        limits = np.iinfo(narrow)
        raise ConfigError(
            f"the {name} of {_named(envs)} is {array[wrong][0]} {when}: it must be from "
            f"{limits.min} to {limits.max}, since JAX has 32 bits for it. Observe it as a float "
            "of a moderate size, or leave it out."
        )


def _named(envs: np.ndarray[Any, Any]) -> str:
    """The numbers of the environments that are True in ``envs`` ``[B]``."""
    numbers = np.flatnonzero(envs).tolist()
    if len(numbers) == 1:
        return f"environment {numbers[0]}"
    return f"environments [{', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}]"
