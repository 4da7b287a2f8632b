"""What R2D2's presets learn, with one seed; benchmarks/results has what three learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest
from whole_runs import on

import sebulba
from sebulba import presets
from sebulba.agents.reference import QAgent
from sebulba.runners.environments import default_make_env, probe
from sebulba.types import Timestep

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_as_for_users")]


class ForgetfulAgent(QAgent):
    """Its recurrent state is zeroed before every step, in acting and in learning.

    So is the last action that it sees: one run learned to hand the cue on from action to action.
    """

    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        seen = timesteps.observation
        timesteps = timesteps._replace(
            observation={**seen, "last_action": jnp.zeros_like(seen["last_action"])},
            first=jnp.ones_like(timesteps.first),
        )
        return super().unroll(params, timesteps, state)


def evaluated(config: sebulba.Config, params: Any, kind: type[QAgent] = QAgent) -> float:
    make_env = default_make_env(config)
    agent = kind(config.network, probe(make_env))
    return float(sebulba.evaluate(agent, params, make_env, 100).returns.mean())


def train(
    name: str, total_steps: int, topology: sebulba.Topology | None = None, **changes: Any
) -> Any:
    """In a part of the preset's steps, which most seeds do not need."""
    config = dataclasses.replace(presets.get(name), total_steps=total_steps)
    return sebulba.train(config, topology=topology or on(1), progress=False, **changes)


@pytest.mark.parametrize(("num_devices", "num_inference"), [(1, None), (4, 2)])
def test_catch(num_devices: int, num_inference: int | None) -> None:
    result = train("r2d2-catch", 200_000, on(num_devices, num_inference))
    assert evaluated(result.config, result.params) >= 0.95


def test_memory_needs_the_recurrent_state() -> None:
    """Rewards are +1 or -1, so 100 episodes of chance are within 0.4 of 0 by four deviations."""
    result = train("r2d2-memory", 120_000)
    assert evaluated(result.config, result.params) >= 0.95
    assert abs(evaluated(result.config, result.params, ForgetfulAgent)) <= 0.4


def test_memory_is_not_learned_without_the_recurrent_state() -> None:
    config = presets.get("r2d2-memory")
    agent = ForgetfulAgent(config.network, probe(default_make_env(config)))
    result = train("r2d2-memory", 120_000, agent=agent)
    assert abs(evaluated(result.config, result.params, ForgetfulAgent)) <= 0.4


def test_cartpole() -> None:
    """All of the preset's steps: after half of them, three of nine seeds were still below 475.

    All nine were at 500 by then, in training, exploring actors included, and after it.
    """
    result = train("r2d2-cartpole", presets.get("r2d2-cartpole").total_steps)
    assert max(row["episode_return_mean_100"] or 0 for row in result.metrics) >= 475
    assert evaluated(result.config, result.params) >= 475
