"""throughput.py: what bounds training, and the settings that stand for a part."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest
from benchmark_parts import Load

from sebulba import presets
from sebulba.runners import environments

DEVICES = jax.devices()


@pytest.mark.slow
def test_throughput_writes_a_report_and_a_table(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda: DEVICES[:1])
    monkeypatch.setattr(load("throughput_parts"), "TRIAL_SECONDS", 0.1)
    tiny = ["--envs-per-actor", "4", "--batch-size", "4", "--unroll-length", "5"]
    tiny += ["--network.hidden-sizes", "8", "--optimizer.no-decay-to-zero"]
    out = ["--repeats", "1", "--seconds", "0.02", "--out", str(tmp_path / "report")]
    load("throughput").main(["vtrace-catch", *out, "--", *tiny])
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["repeats"][0]) == set("abcdef")
    assert report["summary"]["efficiency"]["median"] > 0
    table = (tmp_path / "report.md").read_text()
    assert "| f | training | as in training |" in table
    assert "Efficiency, f / bound: **" in table


def report(platform: str) -> dict[str, Any]:
    """Acting is fastest with more environments than the preset has."""
    acting = {"1 x 4": (4, 10.0), "2 x 4": (4, 15.0), "1 x 8": (8, 40.0)}
    parts = {
        "a": {"1": {"steps_per_second": 20.0}, "2": {"steps_per_second": 60.0}},
        "b": {
            name: {"steps_per_second": rate, "num_envs": size}
            for name, (size, rate) in acting.items()
        },
        "c": {"as in training": {"steps_per_second": 30.0}},
        "d": {"fast": {"steps_per_second": 9e9}, "slow": {"steps_per_second": 9e6}},
    }
    return {
        "machine": {"platform": platform},
        "config": {"envs_per_actor": 4},
        "repeats": [parts],
    }


def test_the_bound_is_the_slowest_work_of_an_accelerator(load: Load) -> None:
    throughput_report = load("throughput_report")
    assert throughput_report._bound(report("gpu"), 60.0, 40.0, 30.0) == 30.0
    assert throughput_report._bound(report("cpu"), 60.0, 30.0, 20.0) == pytest.approx(10.0)
    summary = throughput_report.summarize(report("gpu"))
    assert summary["bound"]["median"] == 30.0
    assert "min(a, b, c)" in throughput_report._bound_in_words(report("gpu"))


@pytest.mark.parametrize(("platform", "acting"), [("gpu", "1 x 8"), ("cpu", "2 x 4")])
def test_the_settings_that_stand_for_a_part(platform: str, acting: str, load: Load) -> None:
    chosen = {name: load("throughput_report")._setting(report(platform), name) for name in "abcd"}
    assert chosen == {"a": "2", "b": acting, "c": "as in training", "d": "slow"}


def test_pools_are_as_in_training_and_not_too_many(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = load("throughput_envs")
    for module in (pools, environments):
        monkeypatch.setattr(module, "cpu_cores", lambda: 16)

    def settings(size: int, lanes: int, env: str = "Pong-v5") -> list[tuple[int, int, int]]:
        config = dataclasses.replace(presets.get("vtrace-catch"), env=env, envs_per_actor=size)
        found: list[tuple[int, int, int]] = pools.pool_settings(config, lanes)
        return found

    assert len(settings(16, 2)) == 6 and settings(16, 2)[0] == (2, 16, 8)
    assert settings(32, 16) == [(16, 32, 1), (1, 512, 16), (2, 512, 16)]
    assert settings(4096, 2) == [(2, 4096, 8)]
    assert settings(16, 1, "sebulba/Catch") == [(1, 16, 0), (1, 64, 0), (1, 256, 0)]
