"""Pictures of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib import pyplot

from sebulba.metrics.meter import Row
from sebulba.metrics.plot import Curves, draw
from sebulba.validation import ConfigError

STEPS = np.array([100, 200, 300, 400])


def rows(values: list[float | None], steps: Any = STEPS) -> list[Row]:
    return [
        {"steps": int(at), "frames": int(4 * at), "seconds": float(at), "loss": value}
        for at, value in zip(steps, values, strict=True)
    ]


def line(figure: Any, number: int = 0) -> np.ndarray:
    return np.array(figure.axes[0].lines[number].get_data())


def band(figure: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest value at each place."""
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    at = np.unique(corners[:, 0])
    inside = [corners[corners[:, 0] == place, 1] for place in at]
    return np.array([low.min() for low in inside]), np.array([high.max() for high in inside])


@pytest.mark.parametrize(("x", "scale"), [("steps", 1.0), ("frames", 4.0), ("minutes", 1 / 60)])
def test_one_run_is_drawn_as_it_is(x: Any, scale: float) -> None:
    figure = draw([Curves("one", rows([3.0, 1.0, None, 2.0]))], ["loss"], x)
    expected = [STEPS[[0, 1, 3]] * scale, [3.0, 1.0, 2.0]]
    np.testing.assert_allclose(line(figure), expected)
    assert figure.axes[0].get_xlabel() == x
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one"]


def test_a_group_is_its_mean_from_lowest_to_highest() -> None:
    runs = [
        Curves("seeds", rows([0.0, 1.0, 2.0, 3.0])),
        Curves("other", rows([9.0, 9.0, 9.0, 9.0])),
        # Wrote its rows elsewhere, and is not as far.
        Curves("seeds", rows([4.0, 4.0, 4.0], steps=[50, 150, 300])),
        Curves("seeds", rows([2.0, 2.0, 2.0, 2.0])),
    ]
    figure = draw(runs, ["loss"])
    at, mean = line(figure)
    assert (at[0], at[-1]) == (100, 300)
    assert at.size == 4  # Where any of them has a point.
    rising = (at - 100) / 100
    np.testing.assert_allclose(mean, (rising + 4 + 2) / 3)
    lowest, highest = band(figure)
    np.testing.assert_allclose(lowest, np.minimum(rising, 2))
    np.testing.assert_allclose(highest, np.full_like(at, 4))
    np.testing.assert_allclose(line(figure, 1)[1], 9)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["seeds (3 runs: mean, lowest and highest)", "other"]


def test_a_panel_for_each_metric() -> None:
    runs = [
        Curves("one", [{"steps": 1, "loss": 1.0, "entropy": 2.0}]),
        Curves("two", [{"steps": 1, "loss": 3.0}]),
    ]
    figure = draw(runs, ["loss", "entropy"])
    assert [axes.get_title() for axes in figure.axes] == ["loss", "entropy"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]


@pytest.mark.parametrize(("points", "marker"), [(1, "."), (30, "."), (31, ""), (400, "")])
@pytest.mark.parametrize("seeds", [1, 2])
def test_few_points_have_marks(points: int, marker: str, seeds: int) -> None:
    values: list[float | None] = [1.0] * points
    figure = draw([Curves("one", rows(values, range(points)))] * seeds, ["loss"])
    (drawn,) = figure.axes[0].lines
    assert drawn.get_marker() == marker
    assert len(drawn.get_xdata()) == (points if seeds == 1 else min(points, 200))


def test_seeds_with_one_point_each_are_drawn_though_these_are_apart() -> None:
    curves = [Curves("one", rows([value], [int(value)])) for value in (3.0, 7.0)]
    figure = draw(curves, ["loss"])
    (drawn,) = figure.axes[0].lines
    assert list(drawn.get_xdata()) == [3, 7] and list(drawn.get_ydata()) == [5, 5]


def test_unknown_metric() -> None:
    with pytest.raises(ConfigError, match=r"no run has the metric 'los': .*'loss'"):
        draw([Curves("one", rows([1.0, 1.0, 1.0, 1.0]))], ["los"])


ROW = {"steps": 1, "loss": 1.0}


@pytest.mark.parametrize(
    ("rows_of_run", "arguments", "says"),
    [
        ([ROW], {"x": "step"}, "x is 'step': it must be one of .*'steps'"),
        ([ROW], {"metrics": "loss"}, "metrics is 'loss': it must be a list"),
        ([ROW], {"metrics": []}, r"metrics is \[\]: it must be a list"),
        ([ROW], {"x": "minutes"}, r"no run has a value of \['loss'\] over minutes: name"),
        ([{**ROW, "loss": None}], {}, r"no run has a value of \['loss'\] over steps: name"),
        ([], {}, "no run has a row of metrics: wait"),
    ],
)
def test_what_cannot_be_drawn(rows_of_run: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        draw([Curves("one", rows_of_run)], **{"metrics": ["loss"], **arguments})


def test_a_notebook_shows_it_once_and_without_pyplot() -> None:
    figure = draw([Curves("one", rows([1.0, 1.0, 1.0, 1.0]))], ["loss"])
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    assert not pyplot.get_fignums()
