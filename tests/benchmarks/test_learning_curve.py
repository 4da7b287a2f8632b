"""learning_curve.py: which checkpoints, and what stays of an interrupted call."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_parts import Load

from sebulba import presets
from sebulba.config import to_json


def test_checkpoints_are_spread_from_the_last(load: Load) -> None:
    spread = load("learning_curve").spread
    assert spread([1, 2, 3], 16) == [3, 1, 2]
    assert spread(range(101), 5) == [100, 0, 50, 75, 25]
    assert spread([7], 1) == [7] and spread(range(9), 1) == [8]


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_what_was_evaluated_stays(
    end: type[BaseException], load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = load("learning_curve")

    def evaluations(options: Any, turns: Any) -> Any:
        yield {"frames": 20, "mean": 2.0, "standard_error": 0.1}
        yield {"frames": 10, "mean": 1.0, "standard_error": 0.1}
        raise end

    monkeypatch.setattr(curve, "chosen", lambda options: [1, 2, 3])
    monkeypatch.setattr(curve, "evaluations", evaluations)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    (run / "config.json").write_text(to_json(presets.get("vtrace-catch"), "vtrace"))
    (run / "metrics.jsonl").write_text('{"frames": 30, "episode_return_mean_100": 1.0}\n')
    options = curve.Options(run=run, out=out)
    if end is KeyboardInterrupt:
        assert curve.main(options) == 1  # One is missing: its checkpoint must stay.
    else:
        with pytest.raises(end):
            curve.main(options)
    rows = json.loads((out / "evaluations.json").read_text())
    assert [row["frames"] for row in rows] == [10, 20]
    assert (out / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()
