"""Aggregates of scores over runs and games, with their uncertainty (Agarwal et al. 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A number and its 95% confidence interval.

    Attributes:
      value: of the runs.
      low: where the interval begins; NaN where a game has a single run.
      high: where it ends.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """What the runs of one setting have in common.

    Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
    sections 4.1 and 4.3. Intervals are the percentiles of a bootstrap that draws the runs of each
    game anew, and keeps the games.

    Attributes:
      metric: what was aggregated.
      scores: those of the runs, by the game.
      iqm: interquartile mean, of the middle half of all runs of all games.
      median: over the games, of the mean of their runs.
      mean: the same, as a mean.
      optimality_gap: how far scores are below 1 in the mean, where those above 1 count as 1; None
        where the scores are not normalized.
    """

    metric: str
    scores: Mapping[str, Sequence[float]]
    iqm: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate | None


def aggregate(metric: str, scores: Mapping[str, Sequence[float]], normalized: bool) -> Aggregate:
    """Aggregate the ``scores`` of the runs of each game; ``normalized`` if 1 is what is wanted."""
    samples = [np.asarray(runs, np.float64) for runs in scores.values()]
    gap = _estimate(_optimality_gap, samples) if normalized else None
    return Aggregate(
        metric,
        scores,
        iqm=_estimate(_iqm, samples),
        median=_estimate(_median, samples),
        mean=_estimate(_mean, samples),
        optimality_gap=gap,
    )


# Each takes one array ``[..., runs]`` for each game.


def _iqm(*games: Array, axis: int = -1) -> Any:
    from scipy import stats

    return stats.trim_mean(np.concatenate(games, axis), 0.25, axis)


def _median(*games: Array, axis: int = -1) -> Any:
    return np.median([game.mean(axis) for game in games], axis=0)


def _mean(*games: Array, axis: int = -1) -> Any:
    return np.mean([game.mean(axis) for game in games], axis=0)


def _optimality_gap(*games: Array, axis: int = -1) -> Any:
    return 1 - np.minimum(np.concatenate(games, axis), 1).mean(axis)


def _estimate(statistic: Callable[..., Any], samples: Sequence[Array]) -> Estimate:
    from scipy import stats  # Not at the top, since it takes long.

    value = float(statistic(*samples))
    if min(map(len, samples)) < 2:
        return Estimate(value, np.nan, np.nan)
    # It draws from each sample by itself, which makes it stratified by game.
    interval = stats.bootstrap(
        samples,
        statistic,
        n_resamples=_RESAMPLES,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))
