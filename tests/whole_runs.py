"""What the tests of whole runs share: a tiny config, and parts that count, wait or fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from sebulba import NetworkConfig, OptimizerConfig, Topology, VTraceConfig, algorithms, envs
from sebulba.types import Agent, ArraySpec, Env, EnvSpec, Timestep

Hook = Callable[["HookedEnv"], None]


def tiny(**changes: Any) -> VTraceConfig:
    """A run of 20 steps an update, of which nothing is learned; ``changes`` replace fields."""
    config = VTraceConfig(
        preset="vtrace-catch",
        env="sebulba/Catch",
        total_steps=200,
        actors_per_device=2,
        envs_per_actor=4,
        batch_size=4,
        unroll_length=5,
        log_every=2,
        network=NetworkConfig(hidden_sizes=(8,)),
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-3),
    )
    return dataclasses.replace(config, **changes)


def on(num_devices: int, num_inference: int | None = None) -> Topology:
    """The first ``num_devices`` devices."""
    return Topology.split(num_inference, devices=jax.devices()[:num_devices])


class HookedEnv:
    """Catch that calls ``on_reset`` and ``on_step`` first, and counts.

    Attributes:
      actor: number of this environment's actor thread; -1 for the probe of the spec.
      resets, steps: calls so far, the present one included.
      firsts: auto-resets in each call of ``step``.
    """

    def __init__(self, num_envs: int, seed: int, actor: int, on_reset: Hook, on_step: Hook) -> None:
        self._env = envs.Catch(num_envs, seed)
        self._on_reset, self._on_step = on_reset, on_step
        self.actor, self.seed = actor, seed
        self.steps = self.resets = 0
        self.firsts: list[int] = []
        self.closed = False

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    def reset(self) -> Timestep:
        self.resets += 1
        self._on_reset(self)
        return self._env.reset()

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self.steps += 1
        self._on_step(self)
        timestep = self._env.step(action)
        self.firsts.append(int(timestep.first.sum()))
        return timestep

    def close(self) -> None:
        self.closed = True


class Pictures(envs.Catch):
    """Catch as pictures of 40 x 40 pixels."""

    @property
    def spec(self) -> EnvSpec:
        return super().spec._replace(observation=ArraySpec((40, 40, 1), np.dtype(np.uint8)))

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        timestep = super().step(action)
        pixels = np.kron(timestep.observation, np.full((1, 4, 8), 255)).astype(np.uint8)
        return timestep._replace(observation=pixels[..., None])


class HookedEnvs:
    """A ``make_env`` of ``HookedEnv``, which keeps those it made for actors in ``made``."""

    def __init__(self, on_step: Hook | None = None, on_reset: Hook | None = None) -> None:
        self._on_step = on_step or _nothing
        self._on_reset = on_reset or _nothing
        self.made: list[HookedEnv] = []

    def __call__(self, num_envs: int, seed: int) -> Env:
        is_probe = num_envs == 1
        actor = -1 if is_probe else len(self.made)
        env = HookedEnv(num_envs, seed, actor, self._on_reset, self._on_step)
        if not is_probe:
            self.made.append(env)
        return env


def _nothing(env: HookedEnv) -> None:
    pass


class HookedLearner:
    """V-trace, with ``before_update(k)`` called before update k, counted from 0 in this run."""

    def __init__(self, learner: Any, before_update: Callable[[int], None]) -> None:
        self._learner = learner
        self._before_update = before_update
        self._updates = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def update(self, state: Any) -> tuple[Any, Any]:
        self._before_update(self._updates)
        self._updates += 1
        result: tuple[Any, Any] = self._learner.update(state)
        return result


def hooked_learner(
    config: VTraceConfig, before_update: Callable[[int], None]
) -> Callable[..., HookedLearner]:
    """The ``make_learner`` of ``HookedLearner``."""

    def make(
        agent: Agent, spec: EnvSpec, optimizer: optax.GradientTransformation, topology: Topology
    ) -> HookedLearner:
        learner = algorithms.make_learner(config, agent, spec, optimizer, topology)
        return HookedLearner(learner, before_update)

    return make


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, read without the package."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_same(left: Any, right: Any) -> None:
    """Two pytrees of arrays are bit-identical."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
