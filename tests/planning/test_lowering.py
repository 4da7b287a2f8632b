"""The programs that a plan compiles: those that a run calls, and what they do in a loop."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

import sebulba
from sebulba import Config, ConfigError, NetworkConfig, R2D2Config, Topology, algorithms, presets
from sebulba.devices import tpu_slices
from sebulba.devices.compiler import inspect
from sebulba.learners import Learner, SynchronizedUpdate, VTraceLearner
from sebulba.planning import plan
from sebulba.planning.lowering import Lowered, lower
from sebulba.planning.roofline import Machine
from sebulba.runners.environments import default_make_env, probe


class Called(Exception):
    """The first update of a run; its argument is what it was called with."""


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (tuple(leaf.shape), str(leaf.dtype)), tree)


def tiny(preset: str, **changes: Any) -> Config:
    config = dataclasses.replace(
        presets.get(preset),
        total_steps=300,
        envs_per_actor=4,
        batch_size=8,
        num_inference_devices=1,
        network=NetworkConfig(hidden_sizes=(8,)),
    )
    if isinstance(config, R2D2Config):
        config = dataclasses.replace(
            config,
            batch_size=4,
            network=NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=8),
            replay=dataclasses.replace(config.replay, capacity=64, min_size=4),
        )
    return dataclasses.replace(config, **changes)


def lowered(config: Config, topology: Topology) -> Lowered:
    return lower(algorithms.of(config), config, probe(default_make_env(config)), topology)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["vtrace-catch", "r2d2-catch"])
def test_the_plan_compiles_what_a_run_calls(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(preset)
    topology = Topology.split(1, jax.devices()[:3])

    def spy(
        self: SynchronizedUpdate, state: Any, batch: Any, fixed: Any = (), progress: float = 0.0
    ) -> Any:
        raise Called(shapes((state, batch, fixed, np.float32(progress))))

    monkeypatch.setattr(SynchronizedUpdate, "__call__", spy)
    with pytest.raises(Called) as called:
        sebulba.train(config, topology=topology, progress=False)
    programs = lowered(config, topology)
    ((update, times),) = programs.update
    assert times == 1
    assert shapes(update.args_info[0]) == called.value.args[0]
    program = inspect(update)
    assert set(program.collectives) == {"all-reduce"}
    params = jax.tree.leaves(update.args_info[0][0].params)
    numbers = sum(math.prod(leaf.shape) for leaf in params)
    # Gradients, and a few scalars of the logs.
    assert 4 * numbers <= program.all_reduce_bytes <= 4 * numbers + 100
    assert inspect(programs.act).flops > 0


def test_an_update_in_microbatches() -> None:
    config = tiny("vtrace-catch", num_microbatches=2)
    programs = lowered(config, Topology.split(1, jax.devices()[:3]))
    assert [times for _, times in programs.update] == [2, 1]
    gradient, rest = (inspect(program) for program, _ in programs.update)
    assert gradient.all_reduce_bytes > 0 == rest.all_reduce_bytes


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ppo-cartpole", "pqn-cartpole"])
def test_epochs_of_minibatches_are_parts_of_one_update(preset: str) -> None:
    config = tiny(preset, num_epochs=2, num_minibatches=4)
    programs = lowered(config, Topology.split(1, jax.devices()[:3]))
    # The targets, each epoch, and its other three minibatches, which are in a loop.
    assert [times for _, times in programs.update] == [1, 2, 2 * 3]
    _, epoch, step = (inspect(program) for program, _ in programs.update)
    assert epoch.all_reduce_bytes == step.all_reduce_bytes > 0
    assert step.flops <= epoch.flops < 2 * step.flops
    assert inspect(programs.act).flops > 0


def test_a_learner_that_does_not_say_how_to_lower_its_update_is_refused() -> None:
    class Opaque(VTraceLearner):
        lower = Learner.lower

    algorithm = dataclasses.replace(algorithms.VTRACE, make_learner=Opaque)
    config = tiny("vtrace-catch")
    spec = probe(default_make_env(config))
    with pytest.raises(
        ConfigError, match=r"vtrace cannot be planned \(Opaque .*\): define .* lower"
    ):
        lower(algorithm, config, spec, Topology.split(1, jax.devices()[:3]))


@pytest.mark.slow
def test_replay_on_the_device_takes_memory() -> None:
    config = tiny("r2d2-catch")
    assert isinstance(config, R2D2Config)
    topology = Topology.split(1, jax.devices()[:3])
    step = 4 * (10 * 5 + 3 + 1)  # Board, reward, discount, action; in float32 and int32.
    on_host = lowered(config, topology).upkeep
    assert not on_host.programs
    # A batch of sequences for each update, and the unrolls that completed as many.
    assert on_host.gathered > step * config.sequence_length * config.batch_size
    assert on_host.stored > step * config.unroll_length * config.batch_size
    assert on_host.stored < 1.2 * on_host.gathered / 2
    replay = dataclasses.replace(config.replay, storage="device", capacity=1000)
    on_device = lowered(dataclasses.replace(config, replay=replay), topology).upkeep
    assert on_device.gathered == on_device.stored == 0
    (read, reads), (write, writes) = on_device.programs
    assert (reads, writes) == (1, config.batch_size / config.envs_per_actor)
    least = step * config.unroll_length * 1000 // 2
    assert min(inspect(read).hbm, inspect(write).hbm) > least


@pytest.mark.slow
def test_a_replay_that_does_not_fit_is_refused() -> None:
    topology = Topology.split(1, jax.devices()[:3])
    machines = (Machine(tpu_slices.parse("v5e-8"), 1, 1e3),) * 2
    rows = []
    for capacity in (1_000, 40_000_000):
        config = tiny("r2d2-catch")
        assert isinstance(config, R2D2Config)
        replay = dataclasses.replace(config.replay, storage="device", capacity=capacity)
        config = dataclasses.replace(config, replay=replay)
        spec = probe(default_make_env(config))
        rows.append(plan._row(algorithms.of(config), config, spec, topology, machines, {}))
    small, large = rows
    assert small.refused is None and small.estimate is not None
    assert 0 < small.estimate.replay_seconds < 1e-3
    assert large.estimate is None and large.hbm > 16 * 2**30
    assert "of the 16 GiB of a device" in str(large.refused)
