"""The replay against a slow model of it: what can be drawn, what is in it, what it takes."""

from __future__ import annotations

import dataclasses
import gc
import resource
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from sebulba import presets
from sebulba.agent import QAgent
from sebulba.config import ConfigError, NetworkConfig, R2D2Config, ReplayConfig
from sebulba.learners import Delivery, memory
from sebulba.learners.host_replay import HostReplay
from sebulba.learners.priorities import Priorities
from sebulba.learners.replay import ReplayShard, Sample
from sebulba.learners.snapshot import Snapshot
from sebulba.learners.storage import Block, DeviceStorage, Geometry, HostStorage, nbytes
from sebulba.topology import Topology
from sebulba.types import ActorOutput, ArraySpec, DiscreteSpec, EnvSpec, Timestep, Trajectory

T, B = 3, 2
STORAGES = {"host": HostStorage, "device": DeviceStorage}
GEOMETRY = Geometry(lanes=3, slots=5, num_envs=B, span=2)


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


# One shard against a model


def random_trajectory(rng: np.random.Generator, num_envs: int = B) -> Trajectory:
    shape = (T + 1, num_envs)
    observation = {
        "observation": rng.integers(0, 256, (*shape, 2, 3)).astype(np.uint8),
        "action": rng.integers(0, 4, shape).astype(np.int32),
    }
    reward, discount = rng.normal(size=(2, *shape)).astype(np.float32)
    timestep = Timestep(observation, reward, discount, rng.random(shape) < 0.2)
    actor = ActorOutput(rng.integers(0, 4, (T, num_envs)).astype(np.int32), extras=reward[1:])
    state = {"lstm": rng.normal(size=(2, num_envs, 5)).astype(np.float32)[0]}
    return Trajectory(timestep, actor, state)


def shapes_of(trajectory: Trajectory) -> Block:
    def batch_major(leaf: np.ndarray) -> Any:
        return jax.ShapeDtypeStruct((B, T, *leaf.shape[2:]), leaf.dtype)

    return Block(
        jax.tree.map(batch_major, trajectory.timestep),
        batch_major(trajectory.actor.action),
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _state(trajectory)),
    )


def _state(trajectory: Trajectory) -> Any:
    return trajectory.initial_state


def mean_priority(errors: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.nanmean(errors, axis=0)
    return result


class Model:
    """What a shard should hold, with nothing overwritten and every sequence searched for."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.unrolls: dict[int, list[Trajectory]] = {n: [] for n in range(geometry.lanes)}
        self.errors: dict[int, list[np.ndarray]] = {n: [] for n in range(geometry.lanes)}
        self.priorities: dict[tuple[int, int, int], float] = {}

    def insert(self, lane: int, trajectory: Trajectory, errors: np.ndarray) -> int:
        """Returns how many sequences became complete."""
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
        return [start for start in range(count) if oldest <= start < count - self.geometry.span]

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


def insert_one(shard: ReplayShard, model: Model, lane: int, rng: np.random.Generator) -> None:
    trajectory = random_trajectory(rng)
    errors = rng.random((T, B)) + 0.1
    completed = model.insert(lane, trajectory, errors)
    assert shard.insert(lane, trajectory, errors, mean_priority) == completed


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


@pytest.mark.parametrize("span", [1, 2])
@pytest.mark.parametrize("kind", STORAGES)
def test_shard_is_the_model(kind: str, span: int) -> None:
    geometry = GEOMETRY._replace(span=span)
    rng = np.random.default_rng(span)
    shard, model = new_shard(kind, geometry), Model(geometry)
    kept: list[Sample] = []
    gone = updated = 0
    for step in range(60):
        # One lane is far behind the others, one far ahead.
        insert_one(shard, model, int(rng.choice(3, p=[0.6, 0.3, 0.1])), rng)
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


def test_both_placements_give_the_same() -> None:
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
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(storage._data)) == expected


# The replay of a host

SPEC = EnvSpec(ArraySpec((2, 3), np.dtype(np.uint8)), DiscreteSpec(4), B)
SPEC = SPEC._replace(
    observation={"observation": SPEC.observation, "action": ArraySpec((), np.dtype(np.int32))}
)
CONFIG = R2D2Config(
    envs_per_actor=2 * B,
    batch_size=2 * B,
    actors_per_device=2,
    unroll_length=T,
    sequence_length=2 * T,
    burn_in=T,
    sequences_per_update=8,
    network=NetworkConfig(hidden_sizes=(4,), core="lstm", core_size=5),
    replay=ReplayConfig(capacity=4 * B * 6, min_size=4),
)


def new_replay(kind: str = "host", num_devices: int = 3, **changes: Any) -> HostReplay:
    """Two learner devices by default; nothing but the agent's state is used of it."""
    replay = dataclasses.replace(CONFIG.replay, placement=kind, **changes.pop("replay", {}))
    config = dataclasses.replace(CONFIG, replay=replay, **changes)
    topology = Topology.split(1, jax.devices()[:num_devices])
    return HostReplay(config, QAgent(config.network, SPEC), SPEC, topology)


class Feed:
    """Random deliveries, lane after lane."""

    def __init__(self, seed: int, num_learners: int = 2) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_learners = num_learners
        self._lane = 0

    def into(self, replay: HostReplay, count: int = 1) -> int:
        """Insert ``count`` unrolls; returns the updates that became due."""
        return sum(
            replay.insert([self.delivery()], self._errors, mean_priority) for _ in range(count)
        )

    def delivery(self) -> Delivery:
        self._lane = (self._lane + 1) % 2
        trajectories = [random_trajectory(self._rng) for _ in range(self._num_learners)]
        state = {"lstm": (np.float32(self._rng.normal(size=(B, 5))),) * 2}
        return Delivery(self._lane, [t._replace(initial_state=state) for t in trajectories])

    def _errors(self, trajectory: Trajectory) -> Any:
        return self._rng.random((T, B)).astype(np.float32)


def test_counts_size_and_capacity() -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 4)  # Two unrolls of each lane: nothing is complete.
    assert replay.sizes() == [0, 0] and replay.inserted == 0
    feed.into(replay, 30)
    assert replay.inserted == 30 * 2 * B
    # At least the capacity that was asked for.
    assert sum(replay.sizes()) == CONFIG.replay.capacity == replay.metrics()["replay_size"]


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1.0, 2.7])
@pytest.mark.parametrize("per_turn", [1, 3])
def test_updates_due_follow_from_counting(ratio: float, per_turn: int) -> None:
    replay, feed = new_replay(replay={"ratio": ratio, "min_size": 7}), Feed(0)
    done = inserted = learned_from = 0
    for turn in range(60):
        due = replay.insert([feed.delivery() for _ in range(per_turn)], feed._errors, mean_priority)
        completed = sum(2 * B for k in range(turn * per_turn, (turn + 1) * per_turn) if k >= 4)
        inserted += completed
        learned_from += completed if inserted >= 7 else 0
        done += due
        # Rounding may defer an update by a turn, but never adds up.
        sequences = learned_from * ratio
        assert done == int(sequences / CONFIG.sequences_per_update + 1e-9)
    assert done > 10 * ratio


def test_quantiles_of_the_priorities() -> None:
    replay, feed = new_replay(), Feed(0)
    assert set(replay.metrics()) == {"replay_size", "replay_ratio"}
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
        draws.append([[s.indices.tolist() for s in replay.sample()] for _ in range(3)])
    assert draws[0] == draws[1]
    flat = [tuple(indices) for sample in draws[0] for indices in sample]
    assert len(set(flat)) == len(flat) == 6


@pytest.mark.parametrize("kind", STORAGES)
def test_memory_that_is_not_there_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, state = 2 * 3 * 1 + 4 + 4 + 4 + 1 + 4, 2 * 5 * 4
    per_unroll = 2 * B * (T * step + state)
    unrolls = 2**30 // per_unroll + 1

    def make(free: int | None) -> HostReplay:
        monkeypatch.setattr(memory, "_available_host_memory", lambda: free)
        return new_replay(kind, replay={"capacity": unrolls * 2 * B})

    with pytest.raises(ConfigError, match=r"1\.00 GiB .*0\.50 GiB are free.*--replay\.capacity"):
        make(2**29)
    monkeypatch.setattr(memory, "_available_host_memory", lambda: 2**29)
    small = new_replay(kind)
    total = 2 * (6 // 2 * 2 + 2) * per_unroll  # Lanes, slots: capacity and a span more.
    held = [leaf.nbytes for s in small._shards for leaf in jax.tree.leaves(s.storage._data)]  # type: ignore[attr-defined]
    assert sum(held) == total
    assert small.memory.startswith("replay takes 0.00 GiB of ") and "0.50 GiB free" in small.memory


def test_memory_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        platform = "gpu"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 3 * 2**30, "bytes_in_use": 2**30}

    devices: Any = (Device(), Device())
    assert "4.00 GiB free" in memory.check_memory(2**32, "device", devices)
    with pytest.raises(ConfigError, match=r"takes 4\.00 GiB of memory of 2 learner device"):
        memory.check_memory(2**32 + 1, "device", devices)
    monkeypatch.setattr(memory, "_available_host_memory", lambda: None)
    assert memory.check_memory(2**60, "host", devices).endswith("of host memory")


def test_the_preset_for_one_machine_fits_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.get("r2d2-atari-small")
    assert isinstance(config, R2D2Config)
    frame = {
        "observation": ArraySpec((84, 84), np.dtype(np.uint8)),
        "action": ArraySpec((), np.dtype(np.int32)),
    }
    spec = EnvSpec(frame, DiscreteSpec(18), config.envs_per_actor)
    monkeypatch.setattr(memory, "_available_host_memory", lambda: 0)
    with pytest.raises(ConfigError, match=r"takes [5-7]\.\d\d GiB") as caught:
        HostReplay(config, QAgent(config.network, spec), spec, Topology.split(1, jax.devices()[:1]))
    # One frame for each step, not a stack; the stack's other frames once for each unroll.
    lanes, slots = 2, -(-config.replay.capacity // (2 * config.envs_per_actor)) + 2
    unroll = 40 * (84 * 84 + 4 + 4 + 4 + 1 + 4) + 3 * 84 * 84 + 2 * 4 * config.network.core_size
    gib = lanes * slots * config.envs_per_actor * unroll / 2**30
    assert f"{gib:.2f} GiB" in str(caught.value)


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


# Snapshots


def everything(replay: HostReplay) -> list[np.ndarray]:
    """Copies of all that a replay holds, in a fixed order."""
    counts = [replay.inserted, replay.learned_from, replay.trained, replay._samples]
    parts: list[Any] = [np.array(counts)]
    for shard in replay._shards:
        state = shard.state()
        parts += [np.array(state[name]) for name in sorted(state)]
        for place in shard.used():
            parts += [np.array(block) for block in shard.storage.blocks(*place)]
    return parts


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def draws_of(replay: HostReplay) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(replay.sample())]


@pytest.mark.parametrize("unrolls", [0, 1, 3, 9, 30])
@pytest.mark.parametrize("kind", STORAGES)
def test_a_replay_is_restored_exactly(kind: str, unrolls: int, tmp_path: Path) -> None:
    replay, feed = new_replay(kind), Feed(unrolls)
    feed.into(replay, unrolls)
    if unrolls > 6:
        replay.update(replay.sample(), [np.full(4, 7.0), np.full(4, 8.0)])
    replay.save(tmp_path / "5")
    replay.finish()
    other = new_replay(kind)
    assert other.load(tmp_path / "5")
    assert_equal(everything(other), everything(replay))
    feeds = Feed(77), Feed(77)
    due = feeds[0].into(replay, 5), feeds[1].into(other, 5)
    assert due[0] == due[1]
    assert_equal(everything(other), everything(replay))
    if unrolls > 3:
        assert_equal(draws_of(other), draws_of(replay))


@pytest.mark.parametrize("before", [7, 30])
@pytest.mark.parametrize("kind", STORAGES)
def test_a_snapshot_is_the_replay_at_the_moment_of_saving(
    kind: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts that overwrite everything go on while it is being written, place by place."""
    take, turns = Snapshot._take, threading.Semaphore(0)

    def slow_take(self: Snapshot, place: Any) -> list[np.ndarray]:
        assert turns.acquire(timeout=20)
        return take(self, place)

    monkeypatch.setattr(Snapshot, "_take", slow_take)
    replay, feed = new_replay(kind), Feed(before)
    feed.into(replay, before)
    expected = everything(replay)
    replay.save(tmp_path / "1")
    for _ in range(40):
        feed.into(replay)
        replay.update(replay.sample(), [np.ones(4), np.ones(4)])
        turns.release()
    turns.release(1000)
    replay.finish()
    saved = new_replay(kind)
    assert saved.load(tmp_path / "1")
    assert_equal(everything(saved), expected)


@pytest.mark.parametrize("kind", STORAGES)
def test_inserts_race_with_the_writer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer looks at the storage while the learner writes to it, in every order."""
    tree_leaves = jax.tree.leaves

    def slow_leaves(*args: Any, **kwargs: Any) -> Any:
        leaves = tree_leaves(*args, **kwargs)
        if threading.current_thread().name == "replay-snapshot":
            time.sleep(0.002)
        return leaves

    monkeypatch.setattr(jax.tree, "leaves", slow_leaves)
    replay, feed = new_replay(kind), Feed(0)
    feed.into(replay, 30)
    expected = everything(replay)
    replay.save(tmp_path / "1")
    feed.into(replay, 40)
    replay.finish()
    saved = new_replay(kind)
    assert saved.load(tmp_path / "1")
    assert_equal(everything(saved), expected)


def test_inserts_do_not_wait_for_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, go = Snapshot._take, threading.Event()

    def held_up(self: Snapshot, place: Any) -> list[np.ndarray]:
        assert go.wait(20)
        return take(self, place)

    monkeypatch.setattr(Snapshot, "_take", held_up)
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 20)
    start = time.perf_counter()
    replay.save(tmp_path / "1")
    feed.into(replay, 20)
    assert time.perf_counter() - start < 1
    go.set()
    replay.finish()


def test_only_the_last_complete_snapshot_stays(tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    for updates in (1, 2, 2, 3):
        feed.into(replay, 3)
        replay.save(tmp_path / str(updates))
    replay.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_half_written_snapshot_is_not_read(tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 9)
    replay.save(tmp_path / "1")
    replay.finish()
    half = tmp_path / "2.tmp"
    (tmp_path / "1").rename(half)
    fresh = new_replay()
    assert not fresh.load(tmp_path / "2") and not fresh.load(tmp_path / "1")
    assert fresh.sizes() == [0, 0]
    # The next one that is complete takes its place.
    (half / "unrolls_0_0.npy").write_bytes(b"half")
    replay.save(tmp_path / "2")
    replay.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
    assert fresh.load(tmp_path / "2")
    assert_equal(everything(fresh), everything(replay))


# Each of these has as many places for sequences as the replay that was saved, or as many arrays.
OTHERS: dict[str, Callable[[], HostReplay]] = {
    "more devices": lambda: new_replay(num_devices=5, sequences_per_update=8),
    "one device": lambda: new_replay(num_devices=2),
    "a larger one": lambda: new_replay(replay={"capacity": 100}),
    "fewer lanes with more environments": lambda: new_replay(
        actors_per_device=1, envs_per_actor=4 * B, batch_size=4 * B
    ),
    "shorter unrolls": lambda: new_replay(unroll_length=1, sequence_length=2, burn_in=1),
    "longer sequences": lambda: new_replay(sequence_length=3 * T, replay={"capacity": 4 * B * 5}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_replay_of_another_size_is_not_read(other: str, tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 20)
    replay.save(tmp_path / "1")
    replay.finish()
    fresh = OTHERS[other]()
    before = everything(fresh)
    assert not fresh.load(tmp_path / "1")
    assert_equal(everything(fresh), before)


def test_a_failed_write_is_raised_by_the_next_insert(tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 9)
    (tmp_path / "file").write_text("in the way")
    replay.save(tmp_path / "file" / "1")
    assert replay._snapshot is not None
    replay._snapshot._thread.join()
    with pytest.raises(OSError, match="file") as caught:
        feed.into(replay)
    assert "replay-snapshot" in caught.value.__notes__[0]
    with pytest.raises(OSError):
        replay.finish()


def test_a_full_disk_is_raised_and_leaves_the_snapshot_before(tmp_path: Path) -> None:
    replay, feed = new_replay(replay={"capacity": 2_000}), Feed(0)
    feed.into(replay, 9)
    replay.save(tmp_path / "1")
    replay.finish()
    feed.into(replay, 400)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The file of the observations does not fit. (Python ignores the signal that comes with it.)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        replay.save(tmp_path / "2")
        with pytest.raises(OSError):
            replay.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert new_replay(replay={"capacity": 2_000}).load(tmp_path / "1")
    assert not new_replay(replay={"capacity": 2_000}).load(tmp_path / "2")
