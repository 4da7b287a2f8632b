"""Rows of metrics against sums done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sebulba.metrics import meter as meter_module
from sebulba.metrics.meter import Meter, joined
from sebulba.types import Unroll
from sebulba.validation import ConfigError


class Clock:
    """time.perf_counter, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter_module, "time", clock)
    return clock


def unroll(version: int, episodes: Any = (), **seconds: float) -> Unroll:
    return Unroll(0, [], version, list(episodes), seconds)


def test_counts_and_rates(clock: Clock) -> None:
    meter = Meter(frame_skip=4, num_actors=2)
    for steps in (90, 110):
        meter.add_steps(np.int32(steps))
    clock.now += 2
    row = meter.row(2)
    assert (row["update"], row["steps"], row["frames"]) == (2, 200, 800)
    assert (row["seconds"], row["steps_per_second"], row["frames_per_second"]) == (2, 100, 400)
    meter.add_steps(np.int32(30))
    clock.now += 1
    row = meter.row(3)
    assert (row["steps"], row["seconds"], row["steps_per_second"]) == (230, 3, 30)


def test_logs_are_means_over_the_updates_since_the_last_row() -> None:
    meter = Meter(1, 1)
    for loss in (1.0, 2.0, 6.0):
        meter.add_logs({"loss": np.float32(loss)})
    assert meter.row(3)["loss"] == 3.0
    meter.add_logs({"loss": np.float32(5.0)})
    assert meter.row(4)["loss"] == 5.0
    assert "loss" not in meter.row(4)


def test_episodes() -> None:
    meter = Meter(1, 2)
    meter.add_unrolls([unroll(0, [(1.0, 10), (2.0, 20)]), unroll(0, [(6.0, 60)])], 0)
    row = meter.row(1)
    assert (row["episodes"], row["episode_return_mean"], row["episode_length_mean"]) == (3, 3, 30)
    row = meter.row(2)
    assert (row["episodes"], row["episode_return_mean"], row["episode_length_mean"]) == (
        3,
        None,
        None,
    )
    assert row["episode_return_mean_100"] == 3
    meter.add_unrolls([unroll(0, [(float(i), 1) for i in range(99)])], 0)
    assert meter.row(3)["episode_return_mean_100"] == (6 + sum(range(99))) / 100


def test_lag_is_between_the_version_that_acted_and_the_one_that_learns() -> None:
    meter = Meter(1, 2)
    meter.add_unrolls([unroll(7), unroll(6)], 7)
    meter.add_unrolls([unroll(5), unroll(8)], 8)
    row = meter.row(8)
    assert (row["policy_lag_mean"], row["policy_lag_max"]) == (1.0, 3)
    assert (meter.row(8)["policy_lag_mean"], meter.row(8)["policy_lag_max"]) == (None, None)


def test_seconds_are_for_each_actor_and_the_learner(clock: Clock) -> None:
    meter = Meter(1, 2)
    for seconds in (0.25, 0.5):
        with meter.timed("queue_wait"):
            clock.now += seconds
    with meter.timed("update"):
        clock.now += 3
    meter.add_unrolls([unroll(0, environment=1.0, act=2.0), unroll(0, act=4.0)], 0)
    meter.add_unrolls([unroll(0, queue=6.0, params=8.0, transfer=0.5)], 1)
    row = meter.row(2)
    assert row["learner_queue_wait_seconds"] == 0.75
    assert (row["learner_update_seconds"], row["learner_publish_seconds"]) == (3, 0)
    actor = {key: row[f"actor_{key}_seconds"] for key in ("environment", "act", "transfer")}
    assert actor == {"environment": 0.5, "act": 3.0, "transfer": 0.25}
    assert (row["actor_queue_wait_seconds"], row["actor_params_wait_seconds"]) == (3.0, 4.0)
    clock.now += 1
    assert meter.row(2)["actor_act_seconds"] == 0


def test_a_row_is_over_all_hosts() -> None:
    def two_hosts(numbers: np.ndarray) -> np.ndarray:
        """The other host has the same numbers, twice."""
        return np.stack([numbers, 2 * numbers])

    meter = Meter(1, 1, two_hosts)
    meter.add_unrolls([unroll(3, [(1.0, 10), (5.0, 20)], act=1.0)], 5)
    row = meter.row(1)
    assert (row["episodes"], row["episode_return_mean"], row["episode_length_mean"]) == (6, 3, 15)
    assert (row["policy_lag_mean"], row["policy_lag_max"]) == (2, 4)
    assert row["actor_act_seconds"] == 1.5


def test_a_resumed_meter_goes_on(clock: Clock) -> None:
    first = Meter(1, 1)
    first.add_steps(np.int32(50))
    first.add_unrolls([unroll(0, [(1.0, 5)])], 0)
    clock.now += 3
    first.add_unrolls([unroll(0, [(1.0, 5), (1.0, 5)])], 1)
    first.add_steps(np.int32(7))
    first.row(1)
    count = first.count()
    assert count == {"steps": 57, "episodes": 3, "seconds": 3}
    clock.now += 100
    second = Meter(1, 1, counts=count)
    second.add_steps(np.int32(10))
    clock.now += 2
    row = second.row(2)
    assert (row["steps"], row["episodes"], row["seconds"]) == (67, 3, 5)
    assert row["steps_per_second"] == 5


@pytest.mark.parametrize("name", ["steps", "update", "seconds", "episode_return_mean"])
def test_a_log_cannot_take_a_name_of_the_row(name: str) -> None:
    meter = Meter(1, 1)
    meter.add_logs({"loss": 1.0, name: 2.0})
    says = rf"log '{name}', .* already: .* Rename it in what Learner.update or .*metrics returns"
    with pytest.raises(ConfigError, match=says):
        meter.row(1)


def test_what_else_is_in_a_row_cannot_take_a_name_that_is_there() -> None:
    row = {"update": 1, "loss": 0.5}
    assert joined(row, {"replay_size": 3.0}, {}) == {**row, "replay_size": 3.0}
    with pytest.raises(ConfigError, match=r"log 'loss', .* already"):
        joined(row, {"replay_size": 3.0}, {"loss": 3.0})
