"""Settings of JAX that users turn on, and outputs that go away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from whole_runs import Pictures, on, tiny, tiny_r2d2

import sebulba
from sebulba import Config, NetworkConfig, envs
from sebulba.metrics.progress import Progress
from sebulba.rundir.reading import has_checkpoints

STRICT = ("jax_enable_x64", "jax_debug_nans")


@pytest.fixture
def strict() -> Iterator[None]:
    """64 bits, and a check of all results; for every thread."""
    before = {name: jax.config.values[name] for name in STRICT}
    try:
        for name in STRICT:
            jax.config.update(name, True)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


RECURRENT = NetworkConfig(core="lstm", core_size=8, hidden_sizes=(8,))
IMAGES = NetworkConfig(torso="small", hidden_sizes=(8,))


@pytest.mark.parametrize(
    ("config", "make_env"),
    [
        (tiny(), envs.Catch),
        pytest.param(tiny(network=IMAGES), Pictures, marks=pytest.mark.slow),
        pytest.param(
            tiny_r2d2(total_steps=700, storage="device", network=RECURRENT),
            envs.Catch,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["vtrace", "images", "r2d2"],
)
def test_trains_with_64_bits_and_checks_for_nan(
    strict: None, config: Config, make_env: Any
) -> None:
    assert jnp.ones(1).dtype == jnp.float64
    result = sebulba.train(config, make_env=make_env, topology=on(1), progress=False)
    assert result.updates > 0


def test_training_goes_on_when_nobody_reads_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        result = sebulba.train(tiny(out=tmp_path), topology=on(1))
        with Progress(10, "title") as display:
            display.message("nobody reads this")
        monkeypatch.undo()
        # What is left in its buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())
    assert result.metrics and has_checkpoints(tmp_path)


def test_a_run_directory_may_be_a_string_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sebulba.train(tiny(out="~/run"), topology=on(1), progress=False)
    assert has_checkpoints(tmp_path / "run")
    assert len(sebulba.evaluate_run("~/run", 3).returns) == 3
