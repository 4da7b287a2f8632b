"""scaling.py: its layouts, and rows that are written at once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_parts import Load

from sebulba import presets
from sebulba.cli.train import parse
from sebulba.validation import ConfigError


def test_layouts_with_as_many_learners_are_points_of_their_own(load: Load) -> None:
    scaling = load("scaling")

    def row(layout: str, learners: int, rate: float, **changes: Any) -> dict[str, Any]:
        where = {"preset": "vtrace-catch", "processes": 1, "slice": "v5e-4", **changes}
        return {"layout": layout, "learners": learners, "frames_per_second": rate, **where}

    rows = [row("a0-l1", 1, 30.0), row("a0-l0", 1, 20.0), row("a0-l1", 1, 10.0)]
    rows += [row("a0-l0", 2, 25.0, processes=2), row("a0-l0", 1, 5.0, preset="r2d2-catch")]
    assert [point[0::2] for point in map(tuple, scaling._points(rows))] == [
        ("r2d2-catch", 1, 5.0, 5.0),
        ("vtrace-catch", 1, 20.0, 20.0),
        ("vtrace-catch", 1, 20.0, 30.0),
        ("vtrace-catch", 2, 25.0, 25.0),
    ]
    assert [point.layout for point in scaling._points(rows)] == ["a0-l0", "a0-l0", "a0-l1", "a0-l0"]


def test_every_layout_that_the_preset_allows(load: Load) -> None:
    scaling = load("scaling")
    found = scaling.layouts(presets.get("vtrace-catch"))  # Of 32 environments, on 8 devices.
    assert [len(topology.learners) for topology in found] == [8, 1, 2, 4]
    assert found[0].inference == found[0].learners
    odd = dataclasses.replace(presets.get("vtrace-catch"), envs_per_actor=7, batch_size=7)
    assert [len(topology.learners) for topology in scaling.layouts(odd)] == [1, 7]


@pytest.mark.parametrize("devices", [1, 3])
def test_what_scaling_trains_is_a_config(
    devices: int, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = load("scaling")

    def run(command: list[str], **_: Any) -> None:
        _, preset, *words = command[command.index("--") + 1 :]
        parse(presets.get(preset), words).config.validate()
        raise InterruptedError  # Nothing is trained.

    monkeypatch.setattr(scaling.subprocess, "run", run)
    with pytest.raises(InterruptedError):
        scaling.measure(scaling.Options(), processes=2, devices=devices)


def test_rows_of_scaling_are_written_at_once(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = load("scaling")

    def measure(options: Any, processes: int, devices: int) -> dict[str, Any]:
        if devices == 2:
            raise OSError
        return {"devices": devices}

    monkeypatch.setattr(scaling, "measure", measure)
    with pytest.raises(OSError):
        scaling.main(scaling.Options(devices=(1, 2), out=tmp_path / "scaling"))
    assert json.loads((tmp_path / "scaling.json").read_text()) == [{"devices": 1}]
    with pytest.raises(ConfigError, match="updates is 3: it must be at least 4"):
        scaling.main(scaling.Options(updates=3, out=tmp_path / "none"))
