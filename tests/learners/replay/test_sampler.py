"""Which sequences are drawn, and how often."""

from __future__ import annotations

import numpy as np
import pytest

from sebulba.learners.replay.sampler import Priorities


def priorities_of(values: np.ndarray, exponent: float = 1.0) -> Priorities:
    priorities = Priorities(len(values), exponent)
    there = np.flatnonzero(values)
    priorities.set(there, values[there])
    return priorities


@pytest.mark.parametrize("exponent", [1.0, 0.5, 0.0])
def test_draws_are_in_proportion(exponent: float) -> None:
    rng = np.random.default_rng(0)
    values = rng.gamma(0.5, size=60) + 1e-3
    values[rng.random(60) < 0.3] = 0
    shares = np.where(values > 0, values**exponent, 0)
    shares /= shares.sum()
    priorities = priorities_of(values, exponent)
    counts, each, rounds = np.zeros(60), 30, 2000
    for _ in range(rounds):
        drawn = priorities.draw(each, rng)
        counts += np.bincount(drawn.indices, minlength=60)
        np.testing.assert_allclose(drawn.probabilities, shares[drawn.indices], rtol=1e-12)
    assert counts[values == 0].sum() == 0
    expected = shares[values > 0] * each * rounds
    freedom = len(expected) - 1
    # Strata only make the counts more even than independent draws would.
    chi_square = np.sum((counts[values > 0] - expected) ** 2 / expected)
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_draws_are_stratified() -> None:
    rng = np.random.default_rng(1)
    values = rng.random(20)
    shares = values / values.sum() * 100
    for _ in range(50):
        drawn = priorities_of(values).draw(100, rng).indices
        assert (np.diff(drawn) >= 0).all()
        assert (np.abs(np.bincount(drawn, minlength=20) - shares) < 2).all()


class Constant:
    """A generator of one number, for the ends of the range."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self, count: int) -> np.ndarray:
        return np.full(count, self._value)


@pytest.mark.parametrize("number", [0.0, float(np.nextafter(1, 0))])
def test_rounding_never_draws_what_cannot_be_drawn(number: float) -> None:
    rng = np.random.default_rng(2)
    for count in range(1, 200):
        values = np.zeros(12)
        values[3:8] = rng.random(5)
        drawn = priorities_of(values).draw(count, Constant(number))  # type: ignore[arg-type]
        assert set(drawn.indices.tolist()) <= set(range(3, 8))
        assert (drawn.probabilities > 0).all()


def test_a_sequence_without_errors_keeps_a_small_chance_until_it_is_cleared() -> None:
    priorities = Priorities(3, 0.9)
    priorities.set(np.array([1]), np.array([0.0]))
    rng = np.random.default_rng(3)
    assert set(priorities.draw(50, rng).indices.tolist()) == {1}
    priorities.set(np.array([0]), np.array([1.0]))
    priorities.clear(np.array([1]))
    assert set(priorities.draw(50, rng).indices.tolist()) == {0}
    assert priorities.powers.tolist() == [1, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_one_error_that_is_no_number_is_not_all_that_is_drawn(bad: float) -> None:
    priorities = Priorities(1000, 0.9)
    priorities.set(np.arange(1000), np.ones(1000))
    priorities.set(np.array([500]), np.array([bad]))
    drawn = priorities.draw(64, np.random.default_rng(4))
    assert np.isfinite(drawn.probabilities).all()
    if np.isnan(bad):
        assert len(set(drawn.indices.tolist())) > 50
    priorities.set(np.array([500]), np.array([1.0]))
    assert len(set(priorities.draw(64, np.random.default_rng(4)).indices.tolist())) > 50


@pytest.mark.parametrize("now", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("before", [0.0, 0.9])
def test_saved_priorities_take_a_new_exponent(before: float, now: float) -> None:
    saved, loaded = Priorities(3, before), Priorities(3, now)
    saved.set(np.array([0, 2]), np.array([0.5, 8.0]))
    loaded.load_state(saved.state())
    expected = np.array([0.5, 8.0]) ** now if before else np.ones(2)
    np.testing.assert_allclose(loaded.powers, [expected[0], 0, expected[1]])
