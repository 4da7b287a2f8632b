"""The plan: what it recommends, how it is shown, and what the TPU compiler says."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from typing import Any

import jax
import pytest
from paths import ROOT
from plan_parts import ACT, NEEDS_LIBTPU, UPDATE
from rich.console import Console

from sebulba import Config, ConfigError, algorithms, presets
from sebulba.cli import plan_table
from sebulba.cli.main import main
from sebulba.devices import placement
from sebulba.planning import plan
from sebulba.planning.plan import Row
from sebulba.planning.roofline import Estimate

RESULTS = ROOT / "benchmarks" / "results" / "tpu_compile.json"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"steps_per_core is {rate}, but must be above 0"):
        plan.make(presets.get("vtrace-catch"), "v5e-8", rate)


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
        (["plan", "vtrace-catch", "--slice", "v3-8", "--remote-lanes", "2"], "remote_lanes is 2"),
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


def convolution(side: int, channels: int, kernel: int, features: int) -> float:
    """Operations for an output of side x side: two for each multiplication."""
    return 2 * side**2 * kernel**2 * channels * features


def deep(channels: int) -> list[float]:
    side, layers = 84, []
    for features in (16, 32, 32):
        layers.append(convolution(side, channels, 3, features))
        side, channels = -(-side // 2), features
        layers += [convolution(side, channels, 3, features)] * 4
    return [*layers, 2 * side**2 * channels * 256]


def shallow(channels: int) -> list[float]:
    convolutions = [(20, channels, 8, 32), (9, 32, 4, 64), (7, 64, 3, 64)]
    return [*(convolution(*words) for words in convolutions), 2 * 7**2 * 64 * 512]


def check_against_hand_count(made: dict[str, Any], layers: list[float], num_actions: int) -> None:
    """``layers`` are the operations of each on one frame, the heads' excepted."""
    config = presets.get(made["preset"])
    (width,) = config.network.hidden_sizes
    frame = sum(layers) + 2 * width * (num_actions + 1)
    rows = [row for row in made["rows"] if row["refused"] is None and not row["changes"]]
    assert rows
    for found in rows:
        learners = len(found["layout"].split("-l")[1].split(","))
        assert found["act"]["flops"] == pytest.approx(config.envs_per_actor * frame, rel=0.1)
        frames = (config.unroll_length + 1) * config.batch_size / learners
        # Forward, and twice as much backward, but for the gradient of the pixels.
        expected = frames * (3 * frame - layers[0])
        assert found["update"]["flops"] == pytest.approx(expected, rel=0.1)


surveyed = pytest.mark.skipif(
    not RESULTS.exists(), reason="benchmarks/tpu_compile.py has not written its table yet"
)


@surveyed
def test_operations_in_the_results_agree_with_a_hand_count() -> None:
    plans = {(p["preset"], p["slice"]): p for p in json.loads(RESULTS.read_text())["plans"]}
    made = plans["vtrace-atari", "v3-8"]
    check_against_hand_count(made, deep(4), num_actions=18)


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
    made = run_plan("vtrace-atari-shallow", "--slice", "v3-8", "--num-inference-devices", "4")
    check_against_hand_count(made, shallow(4), num_actions=18)
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
