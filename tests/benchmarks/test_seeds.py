"""seeds.py, of runs that were trained before."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from benchmark_parts import Load

import sebulba
from sebulba import presets
from sebulba.validation import ConfigError


@pytest.mark.slow
def test_seeds_takes_runs_that_were_trained_before(load: Load, tmp_path: Path) -> None:
    config = dataclasses.replace(presets.get("vtrace-catch"), total_steps=20_000, log_every=5)
    runs = [tmp_path / f"run{seed}" for seed in (4, 7)]
    for seed, run in zip((4, 7), runs, strict=True):
        sebulba.train(dataclasses.replace(config, seed=seed, out=run), progress=False)
    last = sebulba.read_metrics(runs[0])[-1]
    with (runs[0] / "metrics.jsonl").open("a") as file:  # One in which no game ended.
        no_game = {"steps": last["steps"] + 9, "episode_return_mean": None}
        file.write(json.dumps(last | no_game) + "\n")
    seeds = load("seeds")
    options = seeds.Options("vtrace-catch", runs=tuple(runs), reach=(-1.0, 2.0), at_least=2.0)
    assert seeds.main(dataclasses.replace(options, out=tmp_path / "both"), []) == 1  # Below 2.
    result = json.loads((tmp_path / "both.json").read_text())
    assert result["command"] == "sebulba train vtrace-catch" and (tmp_path / "both.png").is_file()
    assert [of_seed["seed"] for of_seed in result["seeds"]] == [4, 7]
    for of_seed, run in zip(result["seeds"], runs, strict=True):
        rows = sebulba.read_metrics(run)
        steps, seconds = of_seed["reached"]["-1.0"]
        assert of_seed["reached"]["2.0"] is None and 0 < steps <= of_seed["steps"]
        assert seconds <= of_seed["seconds"] == round(rows[-1]["seconds"], 1)
        assert of_seed["steps"] == rows[-1]["steps"]
        returns = [row["episode_return_mean_100"] for row in rows if row["episodes"] >= 100]
        assert of_seed["most"] == max(returns) and -1 <= of_seed["return_mean"] <= 1
    with pytest.raises(ConfigError, match="run4 is a run of vtrace-catch: name that preset"):
        seeds.main(dataclasses.replace(options, preset="ppo-pong", out=tmp_path / "other"), [])


def test_a_mean_of_a_few_games_after_a_resume_does_not_count(load: Load) -> None:
    seeds = load("seeds")
    counted = [(100, 1.0), (100, None), (107, 19.0), (199, 12.0), (200, 18.0)]
    rows = [
        {"steps": steps, "seconds": 0.5, "episodes": episodes, "episode_return_mean_100": mean}
        for steps, (episodes, mean) in enumerate(counted)
    ]
    assert seeds.first_at(18.0, rows) == (4, 0.5)
    assert seeds.most(rows) == 18.0
