"""Where rows of metrics go besides the run directory."""

from __future__ import annotations

import csv
import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from whole_runs import on, tiny, tiny_r2d2

import sebulba
from sebulba import ConfigError, algorithms
from sebulba.learners import VTraceLearner
from sebulba.metrics.meter import Row


class Kept:
    """Keeps rows; fails at row number ``fails_at``."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.rows: list[Row] = []
        self.closed = 0
        self._fails_at = fails_at

    def write(self, row: Row) -> None:
        assert not self.closed
        self.rows.append(row)
        if len(self.rows) == self._fails_at:
            raise OSError("the server is gone")

    def close(self) -> None:
        self.closed += 1


class LogsNoNumber(VTraceLearner):
    """One of its logs is NaN, which is no number, and one is infinite."""

    def update(self, state: Any, progress: float) -> Any:
        state, logs = super().update(state, progress)
        return state, logs | {"ratio": jnp.nan, "limit": jnp.inf}


def test_a_sink_gets_all_rows_and_the_end(tmp_path: Path) -> None:
    sinks = [Kept(), Kept()]
    algorithm = dataclasses.replace(algorithms.VTRACE, make_learner=LogsNoNumber)
    result = sebulba.train(
        tiny(out=tmp_path), algorithm=algorithm, topology=on(1), sinks=sinks, progress=False
    )
    for sink in sinks:
        assert sink.rows == result.metrics == sebulba.read_metrics(tmp_path) and sink.closed == 1
    assert sinks[0].rows[-1]["ratio"] is None and sinks[0].rows[-1]["limit"] is None


def test_a_sink_that_fails_ends_the_run() -> None:
    sinks = [Kept(), Kept(fails_at=2)]
    with pytest.raises(OSError, match="the server is gone"):
        sebulba.train(tiny(), topology=on(1), sinks=sinks, progress=False)
    assert [len(sink.rows) for sink in sinks] == [2, 2]
    assert [sink.closed for sink in sinks] == [1, 1]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.csv"
    # R2D2's first rows, of steps without updates, have fewer columns.
    config = tiny_r2d2(log_every=1)
    result = sebulba.train(config, topology=on(1), sinks=[sebulba.CsvSink(path)], progress=False)
    found = read(path)
    assert "loss" not in result.metrics[0] and "loss" in result.metrics[-1]
    assert len(found) == len(result.metrics)
    for row, expected in zip(found, result.metrics, strict=True):
        told = {name: float(value) for name, value in row.items() if value}
        assert told == {name: value for name, value in expected.items() if value is not None}
    # Rows of a run that is resumed come after those that are there.
    sink = sebulba.CsvSink(path)
    sink.write({"steps": 5, "own": 1.0})
    assert len(read(path)) == len(found) + 1 and read(path)[-1]["own"] == "1.0"


def test_a_line_that_a_kill_cut_short_stays_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("steps,loss\n5,0.5\n10")
    sebulba.CsvSink(path).write({"steps": 15, "loss": 0.25})
    assert [row["steps"] for row in read(path)] == ["5", "10", "15"]


@pytest.mark.parametrize("sinks", [Kept(), [Kept], ["rows.csv"]], ids=["one", "a class", "a name"])
def test_what_is_no_list_of_sinks_is_refused_before_the_run(sinks: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sinks .*: it must be a list .*sinks=\["):
        sebulba.train(tiny(out=tmp_path / "run"), topology=on(1), sinks=sinks, progress=False)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a notebook would show."""
    pictures: list[Any] = []

    class Handle:
        update = staticmethod(pictures.append)

    def display(picture: Any, display_id: bool) -> Handle:
        assert display_id and not pictures, "later ones take the place of the first"
        pictures.append(picture)
        return Handle()

    module: Any = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return pictures


def test_live_plot(shown: list[Any]) -> None:
    plot = sebulba.LivePlot(seconds=0.0)
    result = sebulba.train(tiny_r2d2(log_every=1), topology=on(1), sinks=[plot], progress=False)
    assert len(shown) == len(result.metrics) + 1
    assert [len(figure.axes) for figure in (shown[0], shown[-1])] == [2, 4], (
        "no return and no loss at first"
    )
    steps = [row["steps"] for row in result.metrics]
    assert shown[-1].axes[1].lines[0].get_xdata().tolist() == steps


def test_what_a_live_plot_cannot_draw_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="x is 'step'"):
        sebulba.LivePlot(x="step")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="metrics is 'loss'"):
        sebulba.LivePlot("loss")


def test_live_plot_takes_its_time(shown: list[Any]) -> None:
    plot = sebulba.LivePlot(seconds=1e6)
    sebulba.train(tiny(), topology=on(1), sinks=[plot], progress=False)
    assert len(shown) == 2, "the first row, and all rows at the end"
