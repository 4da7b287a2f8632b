"""One shard of the replay against a slow model of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from replay_parts import (
    GEOMETRY,
    STORAGES,
    B,
    T,
    mean_priority,
    random_trajectory,
    shapes_of,
)

from sebulba import (
    Trajectory,
)
from sebulba.learners.replay.shard import ReplayShard, Sample
from sebulba.learners.replay.storage import Geometry, nbytes


class Model:
    """What a shard should hold, with nothing overwritten and every sequence searched for."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.unrolls: dict[int, list[Trajectory]] = {n: [] for n in range(geometry.lanes)}
        self.errors: dict[int, list[np.ndarray]] = {n: [] for n in range(geometry.lanes)}
        self.priorities: dict[tuple[int, int, int], float] = {}
        self.starts: dict[int, list[int]] = {n: [] for n in range(geometry.lanes)}

    def insert(
        self, lane: int, trajectory: Trajectory, errors: np.ndarray, continues: bool = True
    ) -> int:
        """Returns how many sequences became complete."""
        if not continues:
            self.starts[lane].append(len(self.unrolls[lane]))
        before = set(self.sequences(lane))
        self.unrolls[lane].append(trajectory)
        self.errors[lane].append(errors)
        new = set(self.sequences(lane)) - before
        for start in new:
            span = np.concatenate(self.errors[lane][start : start + self.geometry.span])
            for env, value in enumerate(mean_priority(span)):
                self.priorities[lane, start, env] = float(value)
        return len(new) * self.geometry.num_envs

    def sequences(self, lane: int) -> list[int]:
        """First unrolls of all sequences that can be drawn."""
        count = len(self.unrolls[lane])
        oldest = max(0, count - self.geometry.slots)
        span = self.geometry.span
        return [
            first
            for first in range(oldest, count - span)
            if not any(first < start <= first + span for start in self.starts[lane])
        ]

    def drawable(self) -> dict[tuple[int, int, int], float]:
        """Priorities by (lane, first unroll, environment)."""
        return {
            (lane, start, env): self.priorities[lane, start, env]
            for lane in range(self.geometry.lanes)
            for start in self.sequences(lane)
            for env in range(self.geometry.num_envs)
        }

    def contents(self, lane: int, start: int, env: int) -> list[np.ndarray]:
        """The leaves of one sequence, step by step."""
        span = self.unrolls[lane][start : start + self.geometry.span + 1]
        steps = [(unroll, t) for unroll in span[:-1] for t in range(T)]
        timesteps = [
            jax.tree.map(lambda leaf, t=t: leaf[t, env], unroll.timestep) for unroll, t in steps
        ]
        timesteps.append(jax.tree.map(lambda leaf: leaf[0, env], span[-1].timestep))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *timesteps)
        actions = np.stack([unroll.actor.action[t, env] for unroll, t in steps])
        state = jax.tree.map(lambda leaf: leaf[env], span[0].initial_state)
        return [np.asarray(leaf) for leaf in jax.tree.leaves((stacked, actions, state))]


def new_shard(kind: str, geometry: Geometry = GEOMETRY) -> ReplayShard:
    shapes = shapes_of(random_trajectory(np.random.default_rng(0)))
    storage = STORAGES[kind](shapes, geometry, jax.devices()[1])
    return ReplayShard(storage, geometry, exponent=1.0)


def insert_one(
    shard: ReplayShard, model: Model, lane: int, rng: np.random.Generator, losses: float = 0.0
) -> None:
    trajectory = random_trajectory(rng)
    errors = rng.random((T, B)) + 0.1
    continues = rng.random() >= losses
    completed = model.insert(lane, trajectory, errors, continues)
    assert shard.insert(lane, trajectory, errors, mean_priority, continues) == completed


def place_of(shard: ReplayShard, index: int) -> tuple[int, int, int]:
    geometry = shard.geometry
    lane, slot, env = np.unravel_index(index, (geometry.lanes, geometry.slots, geometry.num_envs))
    return int(lane), int(slot), int(env)


def drawable(shard: ReplayShard, model: Model) -> dict[tuple[int, int, int], float]:
    """What the shard can draw, in the model's terms: slots are unrolls modulo the ring."""
    found = {}
    for index in np.flatnonzero(shard.priorities.powers).tolist():
        lane, slot, env = place_of(shard, index)
        (start,) = [s for s in model.sequences(lane) if s % shard.geometry.slots == slot]
        found[lane, start, env] = float(shard.priorities.powers[index])
    return found


def keys_of(shard: ReplayShard, sample: Sample) -> list[tuple[int, int, int]]:
    places = [place_of(shard, index) for index in sample.indices.tolist()]
    return [(lane, int(age), env) for (lane, _, env), age in zip(places, sample.ages, strict=True)]


@pytest.mark.parametrize("losses", [0.0, 0.2], ids=["kept", "lost"])
@pytest.mark.parametrize("span", [1, 2])
@pytest.mark.parametrize("kind", STORAGES)
def test_shard_is_the_model(kind: str, span: int, losses: float) -> None:
    """With ``losses``, an unroll may be of other environments than the one before."""
    geometry = GEOMETRY._replace(span=span)
    rng = np.random.default_rng(span)
    shard, model = new_shard(kind, geometry), Model(geometry)
    kept: list[Sample] = []
    gone = updated = 0
    for step in range(60):
        # One lane is far behind the others, one far ahead.
        insert_one(shard, model, int(rng.choice(3, p=[0.6, 0.3, 0.1])), rng, losses)
        expected = model.drawable()
        assert drawable(shard, model) == pytest.approx(expected)
        assert shard.size == len(expected)
        if not expected or step % 3:
            continue
        sample = shard.sample(6, rng)
        total = sum(expected.values())
        for row, key in enumerate(keys_of(shard, sample)):
            assert sample.probabilities[row] == pytest.approx(expected[key] / total)
            leaves = [np.asarray(leaf[row]) for leaf in jax.tree.leaves(sample.sequences)]
            for got, wanted in zip(leaves, model.contents(*key), strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted)
        assert sample.sequences.timestep.first.shape == (6, span * T + 1)
        assert sample.sequences.action.shape == (6, span * T)
        kept.append(sample)
        old = kept[rng.integers(len(kept))]
        new = rng.random(6) + 1
        shard.update(old, new)
        for key, value in zip(keys_of(shard, old), new, strict=True):
            model.priorities[key] = float(value)
            gone, updated = gone + (key not in expected), updated + (key in expected)
        assert drawable(shard, model) == pytest.approx(model.drawable())
    assert gone > 10 and updated > 10
    assert max(len(unrolls) for unrolls in model.unrolls.values()) > 4 * geometry.slots


def test_both_storages_give_the_same() -> None:
    shards = [new_shard(kind) for kind in STORAGES]
    samples = []
    for shard in shards:
        rng = np.random.default_rng(5)
        for number in range(20):
            shard.insert(number % 3, random_trajectory(rng), rng.random((T, B)), mean_priority)
        samples.append(shard.sample(16, rng))
    for one, other in zip(*map(jax.tree.leaves, samples), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert {leaf.device for leaf in jax.tree.leaves(samples[0].sequences)} == {jax.devices()[1]}
    assert {leaf.device for leaf in jax.tree.leaves(samples[1].sequences)} == {jax.devices()[1]}


@pytest.mark.parametrize("kind", STORAGES)
def test_each_step_is_stored_once(kind: str) -> None:
    # Observation, last action, reward, discount, first; action; and the state of each unroll.
    step = 2 * 3 * 1 + 4 + 4 + 4 + 1 + 4
    unroll = T * step + 5 * 4
    expected = GEOMETRY.lanes * GEOMETRY.slots * B * unroll
    shapes = shapes_of(random_trajectory(np.random.default_rng(0)))
    assert nbytes(shapes, GEOMETRY) == expected
    storage: Any = STORAGES[kind](shapes, GEOMETRY, jax.devices()[0])
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(storage._data))
    if kind == "host":
        assert held == expected
    else:  # Each block is rows of 128 words.
        blocks = GEOMETRY.lanes * GEOMETRY.slots * B
        assert held == blocks * 512 * -(-unroll // 512) and unroll > 2 * T
