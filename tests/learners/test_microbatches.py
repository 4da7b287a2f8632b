"""In how many microbatches the gradient is computed where the config leaves it open."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from sebulba import Config, Topology, algorithms, presets
from sebulba.learners import R2D2Learner, VTraceLearner, make_optimizer
from sebulba.learners.microbatches import fitting_the_cache
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec


def changed(preset: str, **changes: Any) -> Config:
    config = presets.get(preset)
    network = {name[8:]: changes.pop(name) for name in list(changes) if name[:8] == "network_"}
    return dataclasses.replace(
        config, network=dataclasses.replace(config.network, **network), **changes
    )


def on(learners: int, platform: str = "cpu") -> Any:
    """What ``fitting_the_cache`` asks of a topology."""
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
        (changed("vtrace-atari-shallow", envs_per_actor=8, batch_size=8, unroll_length=10), 1, 1),
        (changed("vtrace-atari-shallow", network_core="lstm"), 1, 1),
        (changed("vtrace-cartpole", envs_per_actor=512, batch_size=512), 1, 1),
    ],
)
def test_images_on_a_cpu_are_learned_in_parts_that_the_cache_holds(
    config: Config, learners: int, expected: int
) -> None:
    assert fitting_the_cache(config, on(learners)) == expected
    for platform in ("gpu", "tpu"):
        assert fitting_the_cache(config, on(learners, platform)) == 1


@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        ("vtrace-atari-shallow", None, 4),
        ("vtrace-atari-shallow", 1, 1),
        ("vtrace-atari-shallow", 8, 8),
        ("r2d2-atari-small", None, 1),
        ("r2d2-atari-small", 2, 2),
    ],
)
def test_a_learner_takes_what_is_given_or_else_its_own_choice(
    preset: str, given: int | None, expected: int
) -> None:
    config = changed(preset, num_microbatches=given)
    spec = EnvSpec(ArraySpec((84, 84), np.dtype(np.uint8)), DiscreteSpec(3), 16)
    algorithm = algorithms.of(config)
    learner = algorithm.make_learner(
        config,
        algorithm.make_agent(config, spec, "training"),
        spec,
        make_optimizer(config.optimizer),
        Topology.split(1, jax.devices()[:1]),
    )
    assert isinstance(learner, VTraceLearner | R2D2Learner)
    assert learner.synchronized._num_microbatches == expected
