"""The replay against a slow model of it: what can be drawn, what is in it, what it takes."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from replay_parts import (
    BATCH_SIZE,
    CAPACITY,
    GEOMETRY,
    LEARNERS,
    STORAGES,
    B,
    Feed,
    T,
    make_replay,
    mean_priority,
    new_replay,
    random_trajectory,
    shapes_of,
)

from sebulba import (
    ArraySpec,
    ConfigError,
    DiscreteSpec,
    EnvSpec,
    QAgent,
    R2D2Config,
    Trajectory,
    presets,
)
from sebulba.devices.compiler import Refused
from sebulba.learners.replay import capacity, host
from sebulba.learners.replay.host import HostReplay
from sebulba.learners.replay.sampler import Priorities
from sebulba.learners.replay.shard import ReplayShard, Sample
from sebulba.learners.replay.storage import Geometry, block_shapes, nbytes

# Priorities


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


# One shard against a model


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


# The replay of a host


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


@pytest.mark.parametrize("kind", STORAGES)
def test_memory_that_is_not_there_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, state = 2 * 3 * 1 + 4 + 4 + 4 + 1 + 4, 2 * 5 * 4
    per_unroll = 2 * B * (T * step + state)
    unrolls = 2**30 // per_unroll + 1

    monkeypatch.setattr(capacity, "_available_host_memory", lambda: 2**29)
    large = make_replay(kind, capacity=unrolls * 2 * B)
    # On a device with the padding of the rows.
    size = r"1\.00" if kind == "host" else r"[2-9]\.\d\d"
    refused = rf"takes {size} GiB .*0\.50 GiB are free\. Set replay\.capacity to less"
    with pytest.raises(ConfigError, match=refused):
        large.allocate()
    small = make_replay(kind)
    line = small.allocate()
    assert line.startswith("replay takes 0.00 GiB of ") and "0.50 GiB free" in line
    total = 2 * (6 // 2 * 2 + 2) * per_unroll  # Lanes, slots: capacity and a span more.
    held = [leaf.nbytes for s in small._shards for leaf in jax.tree.leaves(s.storage._data)]  # type: ignore[attr-defined]
    if kind == "host":
        assert sum(held) == total == LEARNERS * small.bytes_per_device
    else:  # What the compiler counts: the rows, and what a sample or an insert takes besides.
        assert total < sum(held) < LEARNERS * small.bytes_per_device < 1.5 * sum(held)


def test_a_replay_that_the_compiler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: Any) -> Any:
        raise Refused("19.65G of 15.75G hbm")

    monkeypatch.setattr(host, "inspect", refuse)
    with pytest.raises(ConfigError, match=r"not fit .*19\.65G of 15\.75G.*Set replay\.capacity"):
        make_replay("device").allocate()
    make_replay("host").allocate()


def test_memory_of_a_container(tmp_path: Path) -> None:
    free = capacity._free_of_container
    assert free(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert free(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert free(tmp_path) == 450


def test_memory_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        platform = "gpu"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 3 * 2**30, "bytes_in_use": 2**30}

    devices: Any = (Device(), Device())
    assert "4.00 GiB free" in capacity.check_memory(2**32, "device", devices)
    with pytest.raises(ConfigError, match=r"takes 4\.00 GiB of memory of 2 learner device"):
        capacity.check_memory(2**32 + 1, "device", devices)
    monkeypatch.setattr(capacity, "_available_host_memory", lambda: None)
    assert capacity.check_memory(2**60, "host", devices).endswith("of host memory")


def test_the_preset_for_one_machine_fits_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.get("r2d2-atari-small")
    assert isinstance(config, R2D2Config)
    frame = {
        "observation": ArraySpec((84, 84), np.dtype(np.uint8)),
        "action": ArraySpec((), np.dtype(np.int32)),
    }
    spec = EnvSpec(frame, DiscreteSpec(18), config.envs_per_actor)
    monkeypatch.setattr(capacity, "_available_host_memory", lambda: 0)
    agent, lanes = QAgent(config.network, spec), config.actors_per_device
    replay = HostReplay(
        config.replay,
        block_shapes(agent, spec, config.envs_per_actor, config.unroll_length),
        lanes=lanes,
        span=2,
        batch_size=config.batch_size,
        seed=0,
        devices=jax.devices()[:1],
    )
    with pytest.raises(ConfigError, match=r"takes [5-7]\.\d\d GiB") as caught:
        replay.allocate()
    # One frame for each step, not a stack; the stack's other frames once for each unroll.
    slots = -(-config.replay.capacity // (lanes * config.envs_per_actor)) + 2
    unroll = 40 * (84 * 84 + 4 + 4 + 4 + 1 + 4) + 3 * 84 * 84 + 2 * 4 * config.network.core_size
    gib = lanes * slots * config.envs_per_actor * unroll / 2**30
    assert f"{gib:.2f} GiB" in str(caught.value)


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
