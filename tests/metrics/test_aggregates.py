"""Aggregates over runs and games, against sums by hand and a bootstrap of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sebulba.metrics.aggregates import aggregate

GAMES = {"a": [0.0, 0.2, 0.4, 0.6], "b": [1.0, 1.5, 2.0, 5.0]}


def test_estimates_are_those_of_the_paper() -> None:
    found = aggregate("score", GAMES, normalized=True)
    # The two lowest and the two highest of eight are left out.
    assert found.iqm.value == pytest.approx((0.4 + 0.6 + 1.0 + 1.5) / 4)
    # The means of the games are 0.3 and 2.375.
    assert found.median.value == found.mean.value == pytest.approx((0.3 + 2.375) / 2)
    assert found.optimality_gap is not None
    assert found.optimality_gap.value == pytest.approx((1.0 + 0.8 + 0.6 + 0.4) / 8)
    assert aggregate("score", GAMES, normalized=False).optimality_gap is None


def test_intervals_are_those_of_a_bootstrap_that_keeps_the_games() -> None:
    random = np.random.default_rng(3)
    scores = random.normal([[0.2], [5.0], [1.0]], 0.3, (3, 10))
    found = aggregate("score", dict(zip("abc", scores.tolist(), strict=True)), normalized=True)
    draws = random.integers(10, size=(20_000, 3, 10))
    again = np.take_along_axis(scores[None], draws, axis=2)
    middle = np.sort(again.reshape(-1, 30))[:, 7:23].mean(axis=1)
    gap = np.clip(1 - again, 0, None).mean(axis=(1, 2))
    means = again.mean(axis=2)
    others = {"mean": means.mean(axis=1), "median": np.median(means, axis=1)}
    for name, values in {"iqm": middle, "optimality_gap": gap, **others}.items():
        estimate = getattr(found, name)
        np.testing.assert_allclose(estimate[1:], np.quantile(values, [0.025, 0.975]), atol=0.02)
        assert estimate.low < estimate.value < estimate.high


def test_a_single_run_of_a_game_has_no_interval() -> None:
    found = aggregate("score", {"a": [0.5], "b": [1.0, 2.0]}, normalized=False)
    assert found.mean.value == 1.0 and math.isnan(found.mean.low)
    assert str(found.mean) == "1"
