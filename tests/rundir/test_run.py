"""Run directories as objects."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from whole_runs import on, tiny

import sebulba
from sebulba.rundir.lock import lock
from sebulba.rundir.run import differing
from sebulba.validation import ConfigError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a`` and ``deep/b``, which differ in the seed and the learning rate, and other files."""
    top = tmp_path_factory.mktemp("runs")
    (top / "notes").mkdir()
    (top / "notes" / "metrics.jsonl").write_text("")
    rates = {"a": 1e-3, "deep/b": 2e-3}
    for seed, (name, rate) in enumerate(rates.items()):
        config = tiny(seed=seed, out=top / name)
        optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
        config = dataclasses.replace(config, optimizer=optimizer)
        sebulba.train(config, topology=on(1), progress=False)
    return top


def set_total(directory: Path, total: int) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_steps": total}))


def test_what_a_run_holds(runs: Path) -> None:
    run = sebulba.load_run(str(runs / "a"))
    assert (run.directory, run.algorithm, run.state) == (runs / "a", "vtrace", "complete")
    assert run.metrics == sebulba.read_metrics(runs / "a")
    assert run.fields["optimizer.learning_rate"] == 1e-3
    assert run.config == tiny(out=runs / "a")


def test_state(runs: Path) -> None:
    directory = runs / "deep" / "b"
    try:
        set_total(directory, 10_000)
        assert sebulba.load_run(directory).state == "stopped"
        held = lock(directory)
        assert sebulba.load_run(directory).state == "running"
        # Looking did not end the lock.
        code = (
            "from pathlib import Path; from sebulba.rundir.lock import is_locked; "
            f"print(is_locked(Path({str(directory)!r})))"
        )
        other = [sys.executable, "-c", code]
        assert subprocess.check_output(other, text=True) == "True\n"
        held.release()
        assert subprocess.check_output(other, text=True) == "False\n"
        (directory / ".lock").touch()  # As a run that was killed leaves it.
        assert sebulba.load_run(directory).state == "stopped"
    finally:
        (directory / ".lock").unlink(missing_ok=True)
        set_total(directory, 200)


def test_a_run_without_metrics_yet(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((runs / "a" / "config.json").read_text())
    run = sebulba.load_run(tmp_path)
    assert (run.metrics, run.state) == ([], "stopped")


def test_all_runs_are_found(runs: Path) -> None:
    found = sebulba.find_runs(runs)
    assert [run.directory for run in found] == [runs / "a", runs / "deep" / "b"]
    assert [run.directory for run in sebulba.find_runs(runs / "a")] == [runs / "a"]
    assert differing(found) == ["optimizer.learning_rate"]
    with pytest.raises(ConfigError, match="there is no run in"):
        sebulba.find_runs(runs / "notes")


def test_what_can_be_plotted(runs: Path) -> None:
    result = sebulba.train(tiny(seed=7), topology=on(1), progress=False)
    figure = sebulba.plot([runs / "a", str(runs / "deep" / "b"), result], ["loss"])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    # Only the seed of the third is not that of the first.
    assert labels == [
        "vtrace-catch optimizer.learning_rate=0.001 (2 runs: mean, lowest and highest)",
        "vtrace-catch optimizer.learning_rate=0.002",
    ]
    for one in (sebulba.load_run(runs / "a").plot(), result.plot(), sebulba.plot(result)):
        assert len(one.axes) == 4 and all(len(axes.lines) == 1 for axes in one.axes)
    by_seed = sebulba.plot(iter(sebulba.find_runs(runs)), ["loss"], by="seed")
    assert len(by_seed.axes[0].lines) == 2


def test_a_legend_fits_where_runs_differ_in_much() -> None:
    many = {f"field_{number}": number for number in range(9)}
    runs = [
        SimpleNamespace(fields=fields, metrics=[{"steps": 1, "loss": 0.0}])
        for fields in (
            {"preset": "a", "seed": 0, **many},
            {"preset": "b", "seed": 0, "width": 1},
            {"preset": "b", "seed": 0, "width": 2},
            {"preset": "b", "seed": 1, "width": 2},
        )
    ]
    figure = sebulba.plot(runs, ["loss"])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a", "b width=1", "b width=2 (2 runs: mean, lowest and highest)"]
    # Where there is room, all that differs is said, but nothing of fields that a run does not have.
    figure = sebulba.plot(
        [runs[1], SimpleNamespace(fields={"preset": "a", "x": 1}, metrics=runs[0].metrics)],
        ["loss"],
    )
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["b width=1", "a x=1"]


def test_what_cannot_be_plotted(runs: Path) -> None:
    with pytest.raises(ConfigError, match=r"by is 'sed': .*'seed'"):
        sebulba.plot(runs / "a", by="sed")
    with pytest.raises(ConfigError, match="there are no runs"):
        sebulba.plot([])
    with pytest.raises(ConfigError, match="is not a run directory"):
        sebulba.plot(runs / "notes")


class Scored:
    """What an evaluated run has, without the run."""

    def __init__(self, env: str, seed: int, score: float | None, **fields: object) -> None:
        self.fields = {"preset": "p", "env": env, "seed": seed, **fields}
        self.metrics = [{"evaluation_return_mean": 1e9}, {"evaluation_return_mean": score}, {}]


def test_scores_are_aggregated_over_seeds_and_games_for_each_setting() -> None:
    runs = [Scored("a", seed, seed, discount=rate) for seed in (1, 2, 3) for rate in (0.9, 0.99)]
    found = sebulba.aggregate(runs)
    assert set(found) == {"p discount=0.9", "p discount=0.99"}
    assert found["p discount=0.9"].scores == {"a": [1, 2, 3]}
    assert found["p discount=0.9"].mean.value == 2
    more = [*runs, Scored("b", 1, 5.0, discount=0.9)]
    with pytest.raises(ConfigError, match="runs are of a, b, whose returns cannot be compared"):
        sebulba.aggregate(more)
    both = sebulba.aggregate(more, "evaluation_return_mean")["p discount=0.9"]
    assert both.scores == {"a": [1, 2, 3], "b": [5.0]} and both.mean.value == 3.5


def test_the_name_of_a_setting_is_short_where_much_differs() -> None:
    many = {f"field_{number}": number for number in range(9)}
    runs = [Scored("a", 1, 1.0, preset="q", **many), Scored("a", 1, 2.0), Scored("a", 2, 4.0)]
    assert {name: each.mean.value for name, each in sebulba.aggregate(runs).items()} == {
        "q": 1.0,
        "p": 3.0,
    }


def test_a_run_without_a_score_is_named() -> None:
    run = Scored("a", 7, None)
    run.metrics = [{}]
    with pytest.raises(ConfigError, match=r"seed 7 in a has no evaluation_return_mean.*--eval"):
        sebulba.aggregate([run])
