"""A wrapper that adds the last action to the observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sebulba.types import (
    ActionSpec,
    ArraySpec,
    BoxSpec,
    DiscreteSpec,
    Env,
    EnvSpec,
    Timestep,
)
from sebulba.validation import ConfigError


def has_both(observation: object) -> bool:
    """Whether an observation, or the spec of one, has the two names of ``PreviousAction``'s."""
    # Flax makes other mappings of the dicts in a module's attributes.
    return isinstance(observation, Mapping) and set(observation) == {"observation", "last_action"}


def has_action(spec: EnvSpec) -> bool:
    """Whether observations have the form that ``PreviousAction`` gives them."""
    # An environment may give something else the same name.
    return has_both(spec.observation) and spec.observation["last_action"] == action_array(
        spec.action
    )


def without_action(spec: EnvSpec) -> Any:
    """The spec of the observations without the last action, where they have it."""
    return spec.observation["observation"] if has_action(spec) else spec.observation


def check_action(action: object) -> None:
    """Check that ``action`` is a spec of actions that networks can take and give.

    Raises:
      ConfigError: it is none.
    """
    if not isinstance(action, ActionSpec):
        raise ConfigError(
            f"the action of the environment is {action}: it must be a DiscreteSpec, a "
            "MultiDiscreteSpec or a BoxSpec. Make it one of them in the environment, or give train "
            "an agent of your own."
        )


def action_array(action: ActionSpec) -> ArraySpec:
    """The array that holds an action of one environment.

    Raises:
      ConfigError: it is no spec of actions.
    """
    check_action(action)
    if isinstance(action, BoxSpec):
        return ArraySpec(action.low.shape, np.dtype(np.float32))
    shape = () if isinstance(action, DiscreteSpec) else (len(action.num_actions),)
    return ArraySpec(shape, np.dtype(np.int32))


class PreviousAction:
    """Wraps an environment to observe ``{"observation": ..., "last_action": ...}``.

    Recurrent networks take the last action and reward as inputs (Espeholt et al., 2018, "IMPALA",
    figure 3; Kapturowski et al., 2019, "R2D2"). The reward is already part of the timestep. The
    action is int32 or float32 ``[B, ...]``, as in the spec of the environment, and 0 where
    ``first``. Networks of the library that have no LSTM pass it over.

    Attributes:
      env: the environment.

    Raises:
      ConfigError: the environment has no spec of actions.
    """

    def __init__(self, env: Env) -> None:
        # Done here, and not by the agent, which does not know the action after exploration.
        self.env = env
        self._action = action_array(env.spec.action)
        observation = {"observation": env.spec.observation, "last_action": self._action}
        self._spec = env.spec._replace(observation=observation)

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Timestep:
        nothing = np.zeros((self._spec.num_envs, *self._action.shape), self._action.dtype)
        return self._with_action(self.env.reset(), nothing)

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        return self._with_action(self.env.step(action), action)

    def close(self) -> None:
        self.env.close()

    def _with_action(self, timestep: Timestep, action: np.ndarray[Any, Any]) -> Timestep:
        # np.array always copies, so the zeros below and later writes by the caller do no harm.
        previous = np.array(action, self._action.dtype)
        # What the last action of another episode was says nothing about this one.
        previous[timestep.first] = 0
        observation = {"observation": timestep.observation, "last_action": previous}
        return timestep._replace(observation=observation)
