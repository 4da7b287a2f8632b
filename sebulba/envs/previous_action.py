"""The last action as a part of the observation."""

from __future__ import annotations

from typing import Any

import numpy as np

from sebulba.types import ArraySpec, DiscreteSpec, Env, EnvSpec, Timestep


def has_action(spec: EnvSpec) -> bool:
    """Whether observations are of the form that ``PreviousAction`` gives them."""
    return isinstance(spec.observation, dict) and set(spec.observation) == {"observation", "action"}


class PreviousAction:
    """Makes the observation ``{"observation": observation, "action": previous action}``.

    Recurrent networks take the last action and reward as inputs (Espeholt et al., 2018, "IMPALA",
    figure 3; Kapturowski et al., 2019, "R2D2"); the reward is in the timestep
    already. The action is int32 ``[B]`` or float32 ``[B, ...]``, as in the environment's spec,
    and 0 where ``first``.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        action = env.spec.action
        if isinstance(action, DiscreteSpec):
            self._action = ArraySpec((), np.dtype(np.int32))
        else:
            self._action = ArraySpec(action.low.shape, np.dtype(np.float32))
        observation = {"observation": env.spec.observation, "action": self._action}
        self._spec = env.spec._replace(observation=observation)

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Timestep:
        nothing = np.zeros((self._spec.num_envs, *self._action.shape), self._action.dtype)
        return self._with_action(self._env.reset(), nothing)

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        return self._with_action(self._env.step(action), action)

    def close(self) -> None:
        self._env.close()

    def _with_action(self, timestep: Timestep, action: np.ndarray[Any, Any]) -> Timestep:
        # A copy in any case, since the caller may write to the action again.
        previous = np.array(action, self._action.dtype)
        previous[timestep.first] = 0
        observation = {"observation": timestep.observation, "action": previous}
        return timestep._replace(observation=observation)
