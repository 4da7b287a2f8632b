"""Pictures of runs: curves of their metrics, those that differ in the seed alone as one band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from sebulba.metrics.meter import Row
from sebulba.metrics.shown import METRICS, TITLES, Axis
from sebulba.validation import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 200
"""Where the curves of a group are compared, at most: as many places as one can see."""
_SPARSE = 30
"""Lines of at most so many points have a mark at each: one alone would not be seen."""


class Curves(NamedTuple):
    """The metrics of one run.

    Attributes:
      group: what it is called; runs of one name become one curve with a band.
      rows: of ``metrics.jsonl``.
    """

    group: str
    rows: Sequence[Row]


def draw(runs: Sequence[Curves], metrics: Sequence[str] = METRICS, x: Axis = "steps") -> Figure:
    """A figure with one panel for each metric.

    Of several runs in a group, the line is their mean, and the band goes from the lowest to the
    highest of them, as far as all of them have come.

    Args:
      runs: what to draw.
      metrics: names of metrics (docs/metrics.md).
      x: agent steps, frames of the game, or minutes of training. Those of an evaluation are of the
        parameters that were evaluated.

    Raises:
      ConfigError: no run has a metric of one of these names, or a value of any of them; ``x`` is
        something else; or matplotlib is missing.
    """
    metrics = checked(metrics, x)
    if tuple(metrics) == METRICS:
        known = {name for run in runs for row in run.rows for name in row}
        metrics = [name for name in METRICS if name in known] or METRICS
    figure = _figure(len(metrics))
    from matplotlib.ticker import EngFormatter

    groups: dict[str, list[Sequence[Row]]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run.rows)
    for axes, metric in zip(figure.axes, metrics, strict=True):
        _check_known(metric, runs)
        for number, (group, members) in enumerate(groups.items()):
            _draw_group(axes, f"C{number}", group, [_points(rows, x, metric) for rows in members])
        axes.set_title(TITLES.get(metric, metric.replace("_", " ")), fontsize="medium")
        axes.set_xlabel(x)
        axes.xaxis.set_major_formatter("{x:g}" if x == "minutes" else EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    if not any(axes.lines for axes in figure.axes):
        raise ConfigError(
            f"no run has a value of {metrics} over {x}: name other metrics, or wait, if one of "
            "them is still running."
        )
    _add_legend(figure, {name: len(members) for name, members in groups.items()})
    return figure


def checked(metrics: Iterable[str], x: str) -> list[str]:
    """The metrics as a list, if there are any and ``x`` is an axis.

    Raises:
      ConfigError: one of the arguments is something else.
    """
    if x not in get_args(Axis):
        raise ConfigError(f"x is {x!r}: it must be one of {list(get_args(Axis))}.")
    names = [] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise ConfigError(f"metrics is {metrics!r}: it must be a list of names of metrics.")
    return names


def _figure(panels: int) -> Figure:
    try:
        from sebulba.metrics.figure import ShownFigure
    except ImportError as error:
        raise ConfigError(
            f"pictures need matplotlib ({error}): install the extra plot, "
            "pip install -e '.[plot]' in a clone."
        ) from error
    columns = 1 if panels == 1 else 2
    rows = -(-panels // columns)
    figure = ShownFigure(figsize=(5.5 * columns, 3.3 * rows + 0.4), layout="constrained")
    for number in range(panels):
        figure.add_subplot(rows, columns, number + 1)
    return figure


def _check_known(metric: str, runs: Sequence[Curves]) -> None:
    known = sorted({name for run in runs for row in run.rows for name in row})
    if not known:
        raise ConfigError("no run has a row of metrics: wait, if one of them is still running.")
    if metric not in known:
        raise ConfigError(f"no run has the metric {metric!r}: it must be one of {known}.")


def _points(rows: Sequence[Row], x: Axis, metric: str) -> np.ndarray:
    """``[2, N]``: where, and how much; without rows that lack the metric."""
    key, scale = ("seconds", 60.0) if x == "minutes" else (x, 1.0)
    if metric.startswith("evaluation_"):
        key = f"evaluation_{key}"
    pairs = [
        (at / scale, value)
        for row in rows
        if (at := row.get(key)) is not None and (value := row.get(metric)) is not None
    ]
    return np.array(pairs, np.float64).reshape(-1, 2).T


def _draw_group(axes: Axes, color: str, name: str, members: Sequence[np.ndarray]) -> None:
    members = [points for points in members if points.size]
    if not members:
        return
    if len(members) == 1:
        _draw_line(axes, color, name, *members[0])
        return
    at = _shared_places([points[0] for points in members])
    values = np.stack([np.interp(at, *points) for points in members])
    axes.fill_between(at, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, lw=0)
    _draw_line(axes, color, name, at, values.mean(axis=0))


def _shared_places(places: Sequence[np.ndarray]) -> np.ndarray:
    """Where to compare curves with points at ``places``: there, if these are few."""
    start, end = max(each[0] for each in places), min(each[-1] for each in places)
    every = np.unique(np.concatenate(places))
    if start > end:  # As where each has one point: a curve stays at its first and its last value.
        return every
    within = every[(start <= every) & (every <= end)]
    return within if len(within) <= _POINTS else np.linspace(start, end, _POINTS)


def _draw_line(axes: Axes, color: str, name: str, at: np.ndarray, values: np.ndarray) -> None:
    marker = "." if len(at) <= _SPARSE else ""
    axes.plot(at, values, color=color, label=name, linewidth=1.5, marker=marker)


def _add_legend(figure: Figure, sizes: Mapping[str, int]) -> None:
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    labels = [
        f"{name} ({sizes[name]} runs: mean, lowest and highest)" if sizes[name] > 1 else name
        for name in handles
    ]
    columns = 1 if max(map(len, labels)) > 40 else min(3, len(labels))
    figure.legend(handles.values(), labels, loc="outside upper center", ncols=columns)
