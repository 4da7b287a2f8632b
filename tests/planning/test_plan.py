"""The plan: slices, the programs it compiles, what it makes of them, and the TPU compiler."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from paths import ROOT
from rich.console import Console

import sebulba
from sebulba import Config, ConfigError, NetworkConfig, R2D2Config, Topology, algorithms, presets
from sebulba.cli import plan_table
from sebulba.cli.main import main
from sebulba.devices import placement, tpu_slices
from sebulba.devices.compiler import Program, find_collectives, inspect, reason
from sebulba.learners import Learner, SynchronizedUpdate, VTraceLearner
from sebulba.planning import plan
from sebulba.planning.lowering import Lowered, lower
from sebulba.planning.plan import Row
from sebulba.planning.roofline import Estimate, Machine, Work, estimate
from sebulba.runners.environments import default_make_env, probe

RESULTS = ROOT / "benchmarks" / "results" / "tpu_compile.json"
NEEDS_LIBTPU = "needs the TPU compiler: pip install 'sebulba[tpu]'"


# Slices


@pytest.mark.parametrize(
    ("name", "shape", "hosts", "per_host", "cpus"),
    [
        ("v2-8", "2x2", 1, 8, 96),
        ("v3-8", "2x2", 1, 8, 96),
        ("v3-32", "4x4", 4, 8, 48),
        ("v4-8", "2x2x1", 1, 4, 240),
        ("v4-4096", "8x16x16", 512, 4, 240),
        ("v5litepod-16", "4x4", 4, 4, 112),
        ("v5e-1", "1x1", 1, 1, 24),
        ("v5e-8", "2x4", 1, 8, 224),
        ("v5e-256", "16x16", 64, 4, 112),
        ("v5p-8", "2x2x1", 1, 4, 208),
        ("v5p-16", "2x2x2", 2, 4, 208),
        ("v6e-8", "2x4", 1, 8, 180),
        ("v6e-32", "4x8", 8, 4, 180),
        ("tpu7x-8", "2x2x1", 1, 8, 224),
        ("tpu7x-16", "2x2x2", 2, 8, 224),
    ],
)
def test_slice_names(name: str, shape: str, hosts: int, per_host: int, cpus: int) -> None:
    found = tpu_slices.parse(name)
    assert (found.shape, found.hosts, found.devices_per_host) == (shape, hosts, per_host)
    assert found.cpus == cpus
    assert found.name == name.replace("v5litepod", "v5e")


def test_the_number_in_a_name_counts_cores_or_chips() -> None:
    for name in tpu_slices.names():
        found = tpu_slices.parse(name)
        assert found.chips * found.generation.cores_per_chip == int(name.split("-")[1])
        assert found.hosts * found.chips_per_host == found.chips


def test_a_device_has_its_share_of_a_chip() -> None:
    v3, v4 = tpu_slices.parse("v3-8"), tpu_slices.parse("v4-8")
    tpu7x = tpu_slices.parse("tpu7x-8")
    assert v3.flops == 123e12 / 2 and v3.hbm_bytes == 16 * 2**30
    assert v4.flops == 275e12 and v4.hbm_bytes == 32 * 2**30
    assert tpu7x.flops == 2307e12 / 2 and tpu7x.hbm_bytes == 96 * 2**30


def test_devices_are_known_again() -> None:
    pytest.importorskip("libtpu", reason=NEEDS_LIBTPU)
    code = """
import jax
from sebulba.devices import tpu_slices
jax.config.update("jax_platforms", "cpu")
for name in ("v2-8", "v3-32", "v4-16", "v5e-8", "v5e-16", "v5p-16", "v6e-1", "v6e-32", "tpu7x-16"):
    found = tpu_slices.identify(tpu_slices.devices(tpu_slices.parse(name)))
    assert found == tpu_slices.parse(name), (name, found)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_cpus_are_no_slice() -> None:
    assert tpu_slices.identify(jax.devices()) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"steps_per_core is {rate}, but must be above 0"):
        plan.make(presets.get("vtrace-catch"), "v5e-8", rate)


def test_unknown_slices_get_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'v5e-17' is unknown.*v5e-16, v5e-32") as error:
        tpu_slices.parse("v5e-17")
    assert "v3-8" not in str(error.value)
    for name in ("", "h100-8", "v3", "v3-x"):
        with pytest.raises(ConfigError, match="v3-8, v3-32"):
            tpu_slices.parse(name)


# Programs: the same arrays as a run's


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


@pytest.mark.parametrize(
    "preset", ["ppo-cartpole", pytest.param("pqn-cartpole", marks=pytest.mark.slow)]
)
def test_epochs_of_minibatches_are_parts_of_one_update(preset: str) -> None:
    config = tiny(preset, num_epochs=2, num_minibatches=4)
    programs = lowered(config, Topology.split(1, jax.devices()[:3]))
    # The targets, the order of each epoch, and a gradient with its step for each minibatch.
    assert [times for _, times in programs.update] == [1, 2, 8]
    *_, step = (inspect(program) for program, _ in programs.update)
    assert step.all_reduce_bytes > 0
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


# Reading the compiler


def test_collectives_are_read_off_the_text() -> None:
    text = """
  %all-reduce.3 = (f32[18]{0:T(256)}, /*index=1*/f32[256,18]{0,1:T(8,128)}) all-reduce(%a, %b)
  %get-tuple-element.4 = f32[18]{0} get-tuple-element(%all-reduce.3), index=0
  %all-gather.1 = bf16[4,8]{1,0} all-gather(%c), dimensions={0}
  %all-reduce-start.1 = f32[2]{0} all-reduce-start(%d)
"""
    found = [("all-reduce", 4 * (18 + 256 * 18)), ("all-gather", 2 * 32), ("all-reduce", 8)]
    assert find_collectives(text) == found


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "INTERNAL: RET_CHECK failure (a/b.cc:1879) count == target(kCore) On platforms with "
            "limited routing include all\n\nmore",
            "On platforms with limited routing include all",
        ),
        (
            "INTERNAL: RET_CHECK failure (a/net.cc:23) id < kMax Unexpected device_id 12 [0:4] in "
            "replica group (0,1,2,3,4,5)",
            "Unexpected device_id 12 [0:4] in replica group (...)",
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory", "RESOURCE_EXHAUSTED: Ran out of memory"),
        ("x" * 500, "x" * 107 + "..."),
    ],
)
def test_a_reason_is_one_short_line(message: str, line: str) -> None:
    assert reason(message) == line


# Rates


ACT = Program(flops=61.5e9, bytes=1e6, hbm=1, all_reduce_bytes=0, collectives={}, seconds=1.0)
UPDATE = Program(flops=1e6, bytes=9e9, hbm=1, all_reduce_bytes=10**9, collectives={}, seconds=1.0)


def test_rates_by_hand() -> None:
    topology = Topology.split(4, jax.devices())
    machine = Machine(tpu_slices.parse("v3-8"), frame_skip=4, steps_per_core=1000.0)
    rates = estimate(Work(32, 2, 64 * 20, ACT, UPDATE), topology, machine)
    assert rates.act_seconds == pytest.approx(1e-3)  # 61.5 G of 61.5 T operations/s.
    # 9 GB of 450 GB/s; and 3/4 of 1 GB twice over 140 GB/s.
    assert rates.update_seconds == pytest.approx(0.02 + 1.5 / 140)
    assert rates.update_bound == "memory"
    # Two actors on each device, each of which acts, then waits for its environments.
    assert rates.acting == pytest.approx(4 / (1 / (2 * 4 * 32 / 1e-3) + 1 / 96e3))
    assert rates.replay_seconds == 0
    assert rates.learning == pytest.approx(4 * 64 * 20 / (0.02 + 1.5 / 140))
    assert rates.environments == pytest.approx(4 * 96 * 1000)
    assert rates.frames == pytest.approx(rates.learning) and rates.bound == "learning"
    assert rates.cores_per_host == pytest.approx(rates.learning / 4 / 1000)


def test_shared_devices_do_both_in_turn() -> None:
    num_envs, steps = 32, 640
    machine = Machine(tpu_slices.parse("v3-8"), 1, 1e12)
    work = Work(num_envs, 2, steps, ACT, UPDATE)
    rates = estimate(work, Topology.shared(jax.devices()), machine)
    act_calls = steps / (8 * num_envs)
    seconds = rates.update_seconds + act_calls * rates.act_seconds
    assert rates.acting == rates.learning == pytest.approx(0.8 * steps / seconds)
    # While an actor's environments step, its device learns and acts for another.
    act_rate = 2 * 8 * num_envs / rates.act_seconds
    slow = estimate(work, Topology.shared(jax.devices()), machine._replace(steps_per_core=100.0))
    assert slow.acting == pytest.approx(1 / (1 / act_rate + 1 / 9600))
    assert slow.bound == "environments"


def test_two_actors_do_not_keep_a_device_busy_that_waits_for_environments() -> None:
    topology = Topology.split(4, jax.devices())
    work = Work(32, 2, 64 * 20, ACT, UPDATE)
    rates = {
        steps: estimate(work, topology, Machine(tpu_slices.parse("v3-8"), 1, steps))
        for steps in (100.0, 1e3, 1e9)
    }
    device = 4 * 32 / rates[1e9].act_seconds
    assert rates[1e9].acting == pytest.approx(device)
    assert rates[1e3].acting < 96e3 < device
    assert rates[100.0].bound == "environments" and rates[100.0].frames < 9600


def test_the_work_of_a_replay_is_counted() -> None:
    topology = Topology.split(2, jax.devices())
    chip = tpu_slices.parse("v5e-8")
    machine = Machine(chip, 1, 1e9)
    without = Work(32, 2, 64 * 20, ACT, UPDATE)
    # The learner's thread gathers while the devices update, so the longer of the two counts.
    on_host = estimate(without._replace(gathered=190e6, stored=60e6), topology, machine)
    assert on_host.replay_seconds == pytest.approx(0.1 + 0.01 + 250e6 / (6 * 16e9))
    assert on_host.learning == pytest.approx(64 * 20 / on_host.replay_seconds)
    assert on_host.update_bound == "replay"
    little = estimate(without._replace(gathered=190e3, stored=60e3), topology, machine)
    assert little.learning == estimate(without, topology, machine).learning
    # On the devices it takes the place of the update.
    piece = dataclasses.replace(ACT, flops=0.0, bytes=chip.hbm_bandwidth * 0.002)
    on_device = estimate(without._replace(besides=((piece, 1.5),)), topology, machine)
    assert on_device.replay_seconds == pytest.approx(0.003)
    seconds = on_device.update_seconds + on_device.replay_seconds
    assert on_device.learning == pytest.approx(64 * 20 / seconds)


A, B, SHARED = "a0-l1,2,3", "a0,1-l2,3", "a0,1,2,3-l0,1,2,3"


def row(layout: str, frames: float, changes: str = "") -> Row:
    rates = Estimate(1, 1, 0, "compute", frames, frames, 9e9, frames, "learning", 1)
    return Row(layout, changes, act=ACT, update=UPDATE, estimate=rates, at_best=rates)


def test_recommendation() -> None:
    refused = Row("a0-l1", "", "no such route")
    assert plan.recommend([refused], "a0-l1") == (None, "every layout is refused")
    best, why = plan.recommend([refused, row(A, 100), row(B, 50)], B)
    assert best == A
    assert why.startswith("100 frames/s, bound by learning") and f"next is {B}: 50" in why
    # Equal as far as an estimate can tell: no changes first, then what training takes by itself.
    assert plan.recommend([row(A, 100, "--x 1"), row(B, 99)], A)[0] == B
    assert plan.recommend([row(A, 100), row(B, 99)], B)[0] == B
    assert plan.recommend([row(A, 100), row(SHARED, 140)], A)[0] == SHARED


def test_the_reason_says_what_faster_environments_change() -> None:
    slow, fast = (
        Estimate(1, 1, 0, "compute", acting, 300, 9e9, min(acting, 300), bound, 1)
        for acting, bound in ((200, "environments"), (400, "learning"))
    )
    found = dataclasses.replace(row(A, 1), estimate=slow, at_best=fast)
    _, why = plan.recommend([found], A)
    assert why.startswith(
        "200 frames/s, bound by environments, to 300 with faster environments, then by learning"
    )
    same = dataclasses.replace(found, at_best=slow)
    assert "faster" not in plan.recommend([same], A)[1]


def test_sensible_layouts() -> None:
    def layouts(config: Config, num_devices: int = 8) -> list[str]:
        def fits(learners: int) -> bool:
            return algorithms.of(config).fits(config, learners)

        return [t.layout for t in plan.sensible(config, fits, jax.devices()[:num_devices])]

    config = presets.get("vtrace-atari")
    assert layouts(config) == [
        "a0,1,2,3,4,5-l6,7",
        "a0,1,2,3-l4,5,6,7",
        "a0,1-l2,3,4,5,6,7",
        "a0,1,2,3,4,5,6,7-l0,1,2,3,4,5,6,7",
    ]
    only = dataclasses.replace(config, num_inference_devices=4)
    assert layouts(only) == ["a0,1,2,3-l4,5,6,7", "a0,1,2,3,4,5,6,7-l0,1,2,3,4,5,6,7"]
    assert layouts(config, num_devices=1) == ["a0-l0"]
    shared = dataclasses.replace(config, placement="shared")
    assert layouts(shared) == ["a0,1,2,3,4,5,6,7-l0,1,2,3,4,5,6,7"]


# The command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "--slice", "v3-8"], "preset must come first"),
        (["plan", "vtrace-catch"], "--slice"),
        (["plan", "vtrace-catch", "--slice", "v5e-3"], "v5e-4, v5e-8"),
        (["plan", "vtrace-catch", "--slice", "v3-8", "--batch-size", "33"], "batch_size 33"),
    ],
)
def test_wrong_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", "vtrace-catch", "--help"])
    assert end.value.code == 0 and "--slice NAME" in capsys.readouterr().out


def test_without_the_compiler_the_survey_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(ConfigError, match=r"the extra tpu.*v5e-16 accepts a0-l1,2,3"):
        plan.make(presets.get("vtrace-catch"), "v5e-16")


def run_plan(*words: str) -> dict[str, Any]:
    """The TPU compiler in a process of its own, since loading it changes the process for good."""
    pytest.importorskip("libtpu", reason=NEEDS_LIBTPU)
    result = subprocess.run(
        [sys.executable, "-m", "sebulba", "plan", *words, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def test_a_small_network_on_a_slice_that_refuses_splits() -> None:
    made = run_plan("vtrace-catch", "--slice", "v5litepod-32", "--num-inference-devices", "2")
    split, shared = made["rows"]
    assert split["layout"] == "a0,1-l2,3" and "limited ICI routing" in split["refused"]
    assert shared["layout"] == "a0,1,2,3-l0,1,2,3" and shared["refused"] is None
    assert made["chosen"] == made["recommended"] == shared["layout"]
    assert (made["slice"], made["hosts"], made["devices_per_host"]) == ("v5e-32", 8, 4)
    assert set(shared["update"]["collectives"]) == {"all-reduce"}
    assert 0 < shared["hbm"] < made["hbm_bytes"]


def hand_count(config: Config, num_actions: int) -> float:
    """Operations of the deep network's forward pass on one frame: two for each multiplication."""
    side, channels, total = 84, config.network.frame_stack, 0.0
    for features in (16, 32, 32):
        total += 2 * side**2 * 9 * channels * features
        side, channels = -(-side // 2), features
        total += 4 * 2 * side**2 * 9 * channels**2
    inputs = side**2 * channels
    for size in config.network.hidden_sizes:
        total += 2 * inputs * size
        inputs = size
    return total + 2 * inputs * (num_actions + 1)


def check_against_hand_count(made: dict[str, Any]) -> None:
    config = presets.get("vtrace-atari")
    frame = hand_count(config, num_actions=18)
    rows = [row for row in made["rows"] if row["refused"] is None and not row["changes"]]
    assert rows
    for found in rows:
        learners = len(found["layout"].split("-l")[1].split(","))
        assert found["act"]["flops"] == pytest.approx(config.envs_per_actor * frame, rel=0.1)
        frames = (config.unroll_length + 1) * config.batch_size / learners
        # Forward, and twice as much backward, but for the gradient of the pixels.
        first_layer = 2 * 84**2 * 9 * config.network.frame_stack * 16
        expected = frames * (3 * frame - first_layer)
        assert found["update"]["flops"] == pytest.approx(expected, rel=0.1)


surveyed = pytest.mark.skipif(
    not RESULTS.exists(), reason="benchmarks/tpu_compile.py has not written its table yet"
)


@surveyed
def test_operations_in_the_results_agree_with_a_hand_count() -> None:
    plans = {(p["preset"], p["slice"]): p for p in json.loads(RESULTS.read_text())["plans"]}
    check_against_hand_count(plans["vtrace-atari", "v3-8"])


@surveyed
@pytest.mark.parametrize("preset", ["vtrace-atari", "r2d2-atari"])
def test_the_results_have_every_slice(preset: str) -> None:
    plans = {(p["preset"], p["slice"]): p for p in json.loads(RESULTS.read_text())["plans"]}
    for name in ("v3-8", "v3-32", "v4-4096", "v5p-16", "v5e-8", "v5e-16", "v5e-32", "v6e-32"):
        made = plans[preset, name]
        rows = {found["layout"]: found for found in made["rows"]}
        chosen = rows[made["chosen"]]
        assert chosen["refused"] is None and made["recommended"] is not None
        assert chosen["hbm"] < made["hbm_bytes"]
        for found in made["rows"]:
            if found["refused"] is None:
                assert set(found["update"]["collectives"]) == {"all-reduce"}, (name, found)


@pytest.mark.slow
def test_operations_agree_with_a_hand_count() -> None:
    made = run_plan("vtrace-atari", "--slice", "v3-8", "--num-inference-devices", "4")
    check_against_hand_count(made)
    assert made["recommended"] and "frames/s, bound by" in made["why"]


def test_the_table_says_everything() -> None:
    made = plan.Plan(
        *("vtrace-catch", "sebulba/Catch", "v5e-16", "4x4", 4, 4, 112, 2.0**34, (458.0, 958.0)),
        {"libtpu": "1", "jax": "2"},
        [row("a0-l1,2,3", 2e6, "--envs-per-actor 33"), Row("a0,1-l2,3", "", "no such route")],
        *(
            "a0-l1,2,3",
            "a0-l1,2,3, since a0,1-l2,3 fails: no such route",
            "a0-l1,2,3",
            "it is fast",
        ),
    )
    console = Console(width=100, file=io.StringIO())
    console.print(plan_table.render(made))
    text = console.file.getvalue()
    for part in (
        "a0,1-l2,3 is refused: no such route",
        "458 to 958 environment steps/s on each CPU",
        "a0-l1,2,3 needs --envs-per-actor 33",
        "61.5 G",
        "2 M",
        "estimates",
        "those after a act, and those after l learn",
        "a0-l1,2,3 is recommended: it is fast.",
    ):
        assert part in text, text


def test_the_survey_names_are_the_slices() -> None:
    assert placement.surveyed("v3-8").startswith("v3-8 accepts a0-l1,2,3,4,5,6,7")
