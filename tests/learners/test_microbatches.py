"""In how many pieces an update is dispatched where the config leaves it open."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from sebulba import presets
from sebulba.agents import distributions
from sebulba.agents.reference import PolicyAgent
from sebulba.config import Config, VTraceConfig
from sebulba.devices.topology import Topology
from sebulba.learners import VTraceLearner, make_optimizer, num_pieces
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec


def changed(preset: str, **changes: Any) -> Config:
    config = presets.get(preset)
    network = {name[8:]: changes.pop(name) for name in list(changes) if name[:8] == "network_"}
    return dataclasses.replace(
        config, network=dataclasses.replace(config.network, **network), **changes
    )


def on(learners: int, platform: str = "cpu") -> Any:
    """What num_pieces asks of a topology."""
    device = SimpleNamespace(platform=platform)
    mesh = SimpleNamespace(devices=np.array([device] * learners))
    return SimpleNamespace(learners=(device,) * learners, mesh=mesh)


@pytest.mark.parametrize(
    ("config", "learners", "expected"),
    [
        (changed("vtrace-atari-shallow"), 1, 4),  # 16 x 21 frames
        (changed("vtrace-atari-shallow"), 2, 2),
        (changed("vtrace-atari-shallow"), 4, 1),
        (changed("vtrace-atari-shallow", batch_size=32), 1, 8),  # two actors' environments
        (changed("vtrace-atari"), 1, 8),
        (changed("vtrace-atari-shallow", envs_per_actor=7, batch_size=7), 1, 7),
        (changed("vtrace-atari-shallow", unroll_length=200), 1, 16),
        (changed("vtrace-atari-shallow", unroll_length=5), 1, 1),
        (changed("vtrace-pong"), 1, 1),  # 8 x 11 frames
        (changed("vtrace-atari-shallow", network_core="lstm"), 1, 1),
        (changed("vtrace-cartpole", envs_per_actor=512, batch_size=512), 1, 1),
        (changed("r2d2-atari-small"), 1, 1),
    ],
)
def test_images_on_a_cpu_are_learned_in_pieces_of_the_cache(
    config: Config, learners: int, expected: int
) -> None:
    assert num_pieces(config, on(learners)) == expected
    for platform in ("gpu", "tpu"):
        assert num_pieces(config, on(learners, platform)) == 1
        for pieces in (1, 2):
            given = dataclasses.replace(config, num_microbatches=pieces)
            assert num_pieces(given, on(learners, platform)) == pieces


def test_the_learner_takes_so_many() -> None:
    config = changed("vtrace-atari-shallow")
    assert isinstance(config, VTraceConfig)
    spec = EnvSpec(ArraySpec((84, 84), np.dtype(np.uint8)), DiscreteSpec(3), 16)
    policy = distributions.make(spec.action)
    agent = PolicyAgent(config.network, spec, policy)
    optimizer = make_optimizer(config.optimizer, 1)
    for given, expected in ((None, 4), (1, 1), (8, 8)):
        learner = VTraceLearner(
            dataclasses.replace(config, num_microbatches=given),
            *(agent, policy, optimizer),
            Topology.split(1, jax.devices()[:1]),
        )
        assert len(learner.synchronized._indices) == expected
