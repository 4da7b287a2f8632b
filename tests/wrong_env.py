"""What the tests of the check of environments share: one to change, and the check of it."""

from __future__ import annotations

from typing import Any

from sebulba.envs import Catch, EnvReport, check_env
from sebulba.types import EnvSpec, Timestep


def checked(make_env: Any, num_steps: int = 300, **more: Any) -> EnvReport:
    return check_env(make_env, 3, num_steps, **more)


class Wrong:
    """Catch, with something about it changed."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.env = Catch(num_envs, seed)
        self.num_envs, self.num_steps = num_envs, 0

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self) -> Timestep:
        return self.changed(self.env.reset())

    def step(self, action: Any) -> Timestep:
        self.num_steps += 1
        return self.changed(self.env.step(action))

    def close(self) -> None:
        pass

    def changed(self, timestep: Timestep) -> Timestep:
        return timestep
