"""The replay of a host: what it counts, draws and holds."""

from __future__ import annotations

import gc
import tracemalloc

import jax
import numpy as np
import pytest
from replay_parts import (
    BATCH_SIZE,
    CAPACITY,
    STORAGES,
    B,
    Feed,
    mean_priority,
    new_replay,
)


def test_counts_size_and_capacity() -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 4)  # Two unrolls of each lane: nothing is complete.
    assert replay.sizes() == [0, 0] and replay.inserted == 0
    feed.into(replay, 30)
    assert replay.inserted == 30 * 2 * B
    # At least the capacity that was asked for.
    assert sum(replay.sizes()) == CAPACITY == replay.metrics()["replay_size"]


@pytest.mark.parametrize("samples_per_insert", [0.1, 0.3, 1.0, 2.7])
@pytest.mark.parametrize("per_turn", [1, 3])
def test_updates_due_follow_from_counting(samples_per_insert: float, per_turn: int) -> None:
    replay, feed = new_replay(samples_per_insert=samples_per_insert, min_size=7), Feed(0)
    done = inserted = learned_from = 0
    for turn in range(60):
        due = replay.insert([feed.unroll() for _ in range(per_turn)], feed.errors, mean_priority)
        completed = sum(2 * B for k in range(turn * per_turn, (turn + 1) * per_turn) if k >= 4)
        inserted += completed
        learned_from += completed if inserted >= 7 else 0
        done += due
        # Rounding may defer an update by a turn, but never adds up.
        sequences = learned_from * samples_per_insert
        assert done == int(sequences / BATCH_SIZE + 1e-9)
    assert done > 10 * samples_per_insert


def test_quantiles_of_the_priorities() -> None:
    replay, feed = new_replay(), Feed(0)
    assert set(replay.metrics()) == {"replay_size", "samples_per_insert"}
    feed.into(replay, 12)
    powers = np.concatenate([shard.priorities.powers for shard in replay._shards])
    values = powers[powers > 0] ** (1 / 0.9)
    for quantile in (10, 50, 90):
        expected = np.quantile(values, quantile / 100)
        assert replay.metrics()[f"priority_quantile_{quantile}"] == pytest.approx(
            expected, rel=0.05
        )


def test_samples_follow_from_the_seed_and_differ_between_shards() -> None:
    draws = []
    for _ in range(2):
        replay, feed = new_replay(), Feed(1)
        feed.into(replay, 20)
        for shard in replay._shards:  # Only the random numbers differ.
            shard.priorities.powers[shard.priorities.powers > 0] = 1
        draws.append([[s.indices.tolist() for s in replay.sample()] for _ in range(3)])
    assert draws[0] == draws[1]
    flat = [tuple(indices) for sample in draws[0] for indices in sample]
    assert len(set(flat)) == len(flat) == 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORAGES)
def test_nothing_grows(kind: str) -> None:
    replay, feed = new_replay(kind), Feed(0)

    def work(count: int) -> None:
        for _ in range(count):
            feed.into(replay)
            samples = replay.sample()
            replay.update(samples, [np.ones(len(sample.indices)) for sample in samples])

    def held() -> tuple[int, int]:
        gc.collect()
        arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        traces = tracemalloc.take_snapshot().filter_traces([arrays]).traces
        return sum(trace.size for trace in traces), len(jax.live_arrays())

    feed.into(replay, 20)
    tracemalloc.start()
    try:
        work(20)
        before = held()
        work(40)
        assert held() == before
    finally:
        tracemalloc.stop()
