"""What the records of the algorithms say of sizes."""

from __future__ import annotations

import dataclasses

from sebulba import algorithms, presets
from sebulba.learners.r2d2 import R2D2Config


def test_sizes_are_rounded_up_to_what_the_learners_divide() -> None:
    vtrace = dataclasses.replace(presets.get("vtrace-atari"), batch_size=64)
    fitted = algorithms.VTRACE.fit(vtrace, 3)
    assert (fitted.envs_per_actor, fitted.batch_size) == (33, 66)
    assert algorithms.VTRACE.fit(vtrace, 2) == vtrace
    in_microbatches = dataclasses.replace(vtrace, envs_per_actor=16, num_microbatches=16)
    fitted = algorithms.VTRACE.fit(in_microbatches, 2)
    assert (fitted.envs_per_actor, fitted.batch_size) == (32, 128)


def test_r2d2_divides_environments_and_sequences() -> None:
    r2d2 = presets.get("r2d2-atari")
    fitted = algorithms.R2D2.fit(r2d2, 3)
    assert (fitted.envs_per_actor, fitted.batch_size) == (66, 66)
    assert algorithms.R2D2.fit(r2d2, 2) == r2d2
    in_microbatches = dataclasses.replace(r2d2, batch_size=72, num_microbatches=5)
    fitted = algorithms.R2D2.fit(in_microbatches, 4)
    assert (fitted.envs_per_actor, fitted.batch_size) == (64, 80)


def test_r2d2_updates_as_often_as_the_samples_per_insert_says() -> None:
    config = presets.get("r2d2-atari")
    assert isinstance(config, R2D2Config)
    # 64 sequences for each 80 inserted, each of which took 40 steps.
    assert algorithms.R2D2.steps_per_update(config) == 80 * 40
