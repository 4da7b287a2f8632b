"""The environments that throughput.py measures, and timesteps recorded from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from sebulba.config import Config
from sebulba.envs.base import cpu_cores
from sebulba.runners.environments import env_threads
from sebulba.types import DiscreteSpec, Env, EnvSpec, MakeEnv, Timestep

RECORDED = 256
"""Timesteps of each environment that are recorded and replayed."""
MOST_ENVIRONMENTS = 2048
"""Of all pools of part a, which are there at once: an Atari game takes megabytes."""
PoolSetting = tuple[int, int, int]
"""Pools, environments of each, and threads of each."""


def pool_settings(config: Config, lanes: int) -> list[PoolSetting]:
    """As in training, which comes first, and others while there is room for their environments."""
    cores = cpu_cores()
    total = lanes * config.envs_per_actor
    if config.env.startswith("sebulba/"):  # These are NumPy, and have no threads.
        settings = [(lanes, config.envs_per_actor, 0)]
        settings += [(1, total, 0), (1, 4 * total, 0), (1, 16 * total, 0)]
    else:
        settings = [(lanes, config.envs_per_actor, env_threads(config, lanes))]
        settings += [(1, total, cores), (2, total, cores), (1, 4 * total, cores)]
        settings += [(1, 4 * total, 1), (1, 16 * total, cores)]
    chosen: list[PoolSetting] = []
    for setting in settings:
        made = sum(pools * size for pools, size, _ in [*chosen, setting])
        if setting not in chosen and (not chosen or made <= MOST_ENVIRONMENTS):
            chosen.append(setting)
    return chosen


def stepping(env: Env) -> Callable[[], tuple[float, tuple[()]]]:
    """Work that steps with random actions; auto-reset steps are done, but not counted."""
    actions = itertools.cycle(random_actions(env.spec, 64))
    steps = max(1, 1024 // env.spec.num_envs)  # So many that our own loop costs nothing.
    env.reset()

    def work() -> tuple[float, tuple[()]]:
        firsts = [env.step(next(actions)).first for _ in range(steps)]
        return float(np.count_nonzero(~np.array(firsts))), ()

    return work


def random_actions(spec: EnvSpec, count: int) -> list[np.ndarray]:
    """``count`` batches ``[B, ...]``."""
    rng = np.random.default_rng(0)
    action = spec.action
    if isinstance(action, DiscreteSpec):
        shape = (count, spec.num_envs)
        return list(rng.integers(action.num_actions, size=shape, dtype=np.int32))
    shape = (count, spec.num_envs, *action.low.shape)
    return list(rng.uniform(action.low, action.high, shape).astype(np.float32))


def record(make_env: MakeEnv, config: Config) -> tuple[EnvSpec, list[Timestep]]:
    """The spec of one actor's environments, and their timesteps with random actions."""
    env = make_env(config.envs_per_actor, config.seed)
    try:
        timesteps = [env.reset()]
        timesteps += [env.step(action) for action in random_actions(env.spec, RECORDED - 1)]
        return env.spec, timesteps
    finally:
        env.close()


class Recorded:
    """Recorded timesteps again and again, whatever the actions: it costs nothing."""

    def __init__(self, spec: EnvSpec, timesteps: list[Timestep]) -> None:
        self.spec = spec
        self._timesteps = timesteps
        self._next = itertools.cycle(timesteps)

    def copy(self) -> Recorded:
        """The same from its start, for another actor; the arrays are shared."""
        return Recorded(self.spec, self._timesteps)

    def reset(self) -> Timestep:
        return next(self._next)

    def step(self, action: np.ndarray) -> Timestep:
        return next(self._next)

    def close(self) -> None:
        pass
