"""A run directory as an object, and several of them beside each other."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sebulba.config import Config, flat
from sebulba.metrics import aggregates, writer
from sebulba.metrics import plot as drawing
from sebulba.metrics.aggregates import Aggregate
from sebulba.metrics.meter import Row
from sebulba.metrics.shown import METRICS, Axis
from sebulba.rundir.lock import is_locked
from sebulba.rundir.reading import CONFIG, load_config, read_fields
from sebulba.validation import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

State = Literal["running", "complete", "stopped"]
_ALIKE = ("seed", "out", "resume")
"""Fields in which runs of one group may differ."""
_LABEL = 80
"""Characters of a label that a picture or a table has room for."""
_NORMALIZED = "evaluation_human_normalized"
_RETURN = "evaluation_return_mean"


class HasMetrics(Protocol):
    """What can be plotted: a ``Run``, or the result of ``train``."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The config as one flat dict: the fields of groups under dotted names."""

    @property
    def metrics(self) -> Sequence[Row]:
        """The rows of ``metrics.jsonl``."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run directory holds.

    Attributes:
      directory: where it is.
      algorithm: name of its algorithm.
      fields: its config as one flat dict, ``{"optimizer.learning_rate": 0.001, ...}``.
      metrics: the rows of ``metrics.jsonl``, dicts of numbers: ``pandas.DataFrame(run.metrics)``.
      state: "running" where a process of this machine writes to it, "complete" after
        ``total_steps``, and "stopped" before.
    """

    directory: Path
    algorithm: str
    fields: Mapping[str, Any]
    metrics: Sequence[Row] = dataclasses.field(repr=False)
    state: State

    @functools.cached_property
    def config(self) -> Config:
        """Its config, if its algorithm is registered here.

        Raises:
          ConfigError: it is not, or this version of the library does not take the config.
        """
        return load_config(self.directory)

    def plot(self, metrics: Sequence[str] = METRICS, x: Axis = "steps") -> Figure:
        """Draw metrics over ``x``; see ``sebulba.plot``."""
        return plot([self], metrics, x)


def load_run(directory: Path | str) -> Run:
    """Read a run directory; also that of a run in progress.

    Raises:
      ConfigError: this is not a run directory.
    """
    directory = Path(directory).expanduser()
    algorithm, fields = read_fields(directory)
    has_metrics = (directory / writer.FILE_NAME).is_file()
    metrics = writer.read(directory) if has_metrics else []
    done = metrics[-1]["steps"] if metrics else 0
    state: State = "complete" if done >= fields["total_steps"] else "stopped"
    return Run(
        directory, algorithm, flat(fields), metrics, "running" if is_locked(directory) else state
    )


def find_runs(directory: Path | str) -> list[Run]:
    """The runs in a directory and in all directories below it, in the order of their names.

    Raises:
      ConfigError: there is none.
    """
    directory = Path(directory).expanduser()
    runs = [load_run(found) for found in sorted(_run_directories(directory))]
    if not runs:
        raise ConfigError(f"there is no run in {directory}: give a directory that holds some.")
    return runs


def _run_directories(top: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(top):
        if CONFIG in files:
            folders.clear()  # Its checkpoints have many files.
            yield Path(where)


def differing(runs: Sequence[HasMetrics]) -> list[str]:
    """Names of the config fields that are not the same in all ``runs``, but for seed and place."""
    names = dict.fromkeys(name for run in runs for name in run.fields)
    return [
        name
        for name in names
        if name not in _ALIKE and len({repr(run.fields.get(name)) for run in runs}) > 1
    ]


def plot(
    runs: HasMetrics | Path | str | Iterable[HasMetrics | Path | str],
    metrics: Sequence[str] = METRICS,
    x: Axis = "steps",
    by: str | None = None,
) -> Figure:
    """Draw the metrics of runs, a panel for each metric.

    Runs that differ in nothing but the seed are one curve: their mean, with a band from the lowest
    to the highest. ``figure.savefig("runs.png")`` writes the picture.

    Args:
      runs: results of ``train``, of ``load_run``, or run directories; one or several.
      metrics: names of metrics, as docs/metrics.md lists them.
      x: agent steps, frames of the game, or minutes of training.
      by: a config field, such as "optimizer.learning_rate": one curve for each of its values. None
        takes all fields that differ.

    Returns:
      a figure of matplotlib, which is in the extra ``plot``.

    Raises:
      ConfigError: matplotlib is missing, there are no runs, ``x`` or ``metrics`` is something else,
        or no run has the field, a metric or a value to draw.
    """
    loaded = _loaded(runs)
    if by is not None and not any(by in run.fields for run in loaded):
        known = sorted(loaded[0].fields)
        raise ConfigError(f"by is {by!r}: it must be a field of the config, one of {known}.")
    names = [by] if by is not None else _fitting(loaded, differing(loaded))
    curves = [drawing.Curves(_label(run, names), run.metrics) for run in loaded]
    return drawing.draw(curves, metrics, x)


def aggregate(
    runs: HasMetrics | Path | str | Iterable[HasMetrics | Path | str], metric: str | None = None
) -> dict[str, Aggregate]:
    """Aggregate the scores of runs over seeds and games, as Agarwal et al. (2021) recommend.

    A run's score is its last number of the metric: that of the final parameters, once the run is
    complete, unless it was told to stop during their evaluation.

    Args:
      runs: results of ``train``, of ``load_run``, or run directories; one or several.
      metric: name of a metric. None takes human-normalized scores of evaluations during training
        where all runs have them, and the mean returns of these evaluations where all runs are of
        one environment.

    Returns:
      an aggregate for each setting, by its name; runs of one setting differ in nothing but seed and
      environment.

    Raises:
      ConfigError: there are no runs, one lacks the metric, or they have no common one.
    """
    loaded = _loaded(runs)
    metric = metric or _common_metric(loaded)
    names = _fitting(loaded, [name for name in differing(loaded) if name != "env"])
    groups: dict[str, dict[str, list[float]]] = {}
    for run in loaded:
        score = _last(run, metric)
        if score is None:
            raise ConfigError(
                f"the run with the seed {run.fields.get('seed')} in {run.fields.get('env')} has no "
                f"{metric}: leave it out, name another metric, or set evaluation.interval in "
                "training, on the command line with --evaluation.interval."
            )
        games = groups.setdefault(_label(run, names), {})
        games.setdefault(str(run.fields.get("env")), []).append(score)
    return {
        name: aggregates.aggregate(metric, games, metric == _NORMALIZED)
        for name, games in groups.items()
    }


def _common_metric(runs: Sequence[HasMetrics]) -> str:
    if all(_last(run, _NORMALIZED) is not None for run in runs):
        return _NORMALIZED
    environments = sorted({str(run.fields.get("env")) for run in runs})
    if len(environments) > 1:
        raise ConfigError(
            f"the runs are of {', '.join(environments)}, whose returns cannot be compared, and not "
            "all have human-normalized scores of evaluations during training: give runs of one "
            "environment, or name a metric that means the same in all of them."
        )
    return _RETURN


def _last(run: HasMetrics, metric: str) -> float | None:
    found = (row[metric] for row in reversed(run.metrics) if row.get(metric) is not None)
    return next(found, None)


def _loaded(
    runs: HasMetrics | Path | str | Iterable[HasMetrics | Path | str],
) -> list[HasMetrics]:
    is_one = isinstance(runs, str) or not isinstance(runs, Iterable)
    several: list[Any] = [runs] if is_one else list(runs)  # type: ignore[arg-type]
    if not several:
        raise ConfigError("there are no runs: give one or several.")
    return [load_run(run) if isinstance(run, (str, Path)) else run for run in several]


def _label(run: HasMetrics, names: Sequence[str]) -> str:
    """What sets a run apart: its preset, and what is not the same in all."""
    preset = str(run.fields.get("preset") or run.fields.get("env"))
    own = [name for name in names if name != "preset" and name in run.fields]
    return " ".join([preset, *(f"{name}={run.fields[name]}" for name in own)])


def _fitting(runs: Sequence[HasMetrics], names: Sequence[str]) -> Sequence[str]:
    """``names``, or if they make labels too long, the first few that tell the same runs apart."""

    def labels(names: Sequence[str]) -> set[str]:
        return {_label(run, names) for run in runs}

    if max(map(len, labels(names))) <= _LABEL:
        return names
    found: list[str] = []
    for name in names:
        if len(labels([*found, name])) > len(labels(found)):
            found.append(name)
    return found
