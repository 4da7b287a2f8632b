"""A snapshot of the replay is what was there when it was made, whatever happens meanwhile."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_parts import (
    NETWORK,
    SPEC,
    STORAGES,
    B,
    Feed,
    assert_equal,
    everything,
    new_replay,
)

from sebulba import QAgent
from sebulba.learners.replay.host import HostReplay
from sebulba.learners.replay.snapshot import Snapshot


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
    assert other.load(tmp_path / "5") is None
    assert_equal(everything(other), everything(replay))
    feeds = Feed(77), Feed(77)
    due = feeds[0].into(replay, 5), feeds[1].into(other, 5)
    assert due[0] == due[1]
    assert_equal(everything(other), everything(replay))
    if unrolls > 3:
        assert_equal(draws_of(other), draws_of(replay))


@pytest.mark.parametrize("kind", STORAGES)
def test_a_state_of_a_type_that_is_not_numpys_own_is_restored(kind: str, tmp_path: Path) -> None:
    class Half(QAgent):
        def initial_state(self, batch_size: int) -> Any:
            return jax.tree.map(
                lambda leaf: leaf.astype(jnp.bfloat16), super().initial_state(batch_size)
            )

    replay, other = (new_replay(kind, agent=Half(NETWORK, SPEC)) for _ in range(2))
    Feed(0).into(replay, 9)
    replay.save(tmp_path / "5")
    replay.finish()
    assert other.load(tmp_path / "5") is None
    assert any(part.dtype == jnp.bfloat16 for part in everything(other))
    assert_equal(everything(other), everything(replay))
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
    assert saved.load(tmp_path / "1") is None
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
    assert saved.load(tmp_path / "1") is None
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
    replay.save(tmp_path / "1")
    feed.into(replay, 20)
    assert not any(tmp_path.glob("1/*"))
    go.set()
    replay.finish()  # Which raises, had the writer not been waiting all the time.
    assert (tmp_path / "1").exists()


class Killed(BaseException):
    """Nothing more is done, as after a kill."""


def save_until(step: int, replay: HostReplay, path: Path) -> bool:
    """Save, but be killed before the given change on disk; whether it came to that."""
    steps = iter(range(10**6))

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(steps) >= step:
                raise Killed
            return change(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as monkeypatch:
        for owner, name in (
            *((os, name) for name in ("rename", "replace", "mkdir")),
            *((shutil, "rmtree"), (Path, "open"), (Path, "write_text")),
            *((np, "save"), (np, "savez"), (Snapshot, "_take")),
        ):
            monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
        replay.save(path)
        try:
            replay.finish()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("turn", ["1", "2"])
def test_a_kill_at_any_step_leaves_a_complete_snapshot(turn: str, tmp_path: Path) -> None:
    """A resumed run may reach the same turn again."""
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 9)
    replay.save(tmp_path / "1")
    replay.finish()
    before = everything(replay)
    feed.into(replay, 4)
    for step in range(10**6):
        killed = save_until(step, replay, tmp_path / turn)
        loaded = new_replay()
        note = loaded.load(tmp_path / turn)
        is_new = len(everything(loaded)) != len(before)
        assert_equal(everything(loaded), everything(replay) if is_new else before)
        if note is not None or (turn == "2" and not is_new):
            assert note == "the replay is that of turn(s) [1], the checkpoint that of 2"
        if turn == "2":
            assert new_replay().load(tmp_path / "1") is None
        if not killed:
            break
    assert step > 5 and is_new
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"1", turn})


def test_the_snapshot_of_the_checkpoints_own_turn_is_read(tmp_path: Path) -> None:
    """There may be a newer one, whose checkpoint was not complete."""
    replay, feed = new_replay(), Feed(0)
    for turn in (1, 2):
        feed.into(replay, 5)
        replay.save(tmp_path / str(turn))
        replay.finish()
        if turn == 1:
            before = everything(replay)
    loaded = new_replay()
    assert loaded.load(tmp_path / "1") is None
    assert_equal(everything(loaded), before)
    loaded = new_replay()
    assert (
        loaded.load(tmp_path / "3") == "the replay is that of turn(s) [2], the checkpoint that of 3"
    )


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)


def pickle(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([{"an": "object"}]), allow_pickle=True)


def as_float64(path: Path) -> None:
    if path.suffix == ".npy":
        np.save(path, np.load(path).astype(np.float64))
    else:
        flip(path)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b""), flip, pickle, as_float64]
)
def test_a_damaged_snapshot_is_not_read(damage: Callable[[Path], None], tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 9)
    replay.save(tmp_path / "1")
    replay.finish()
    files = sorted((tmp_path / "1").iterdir())
    assert len(files) > 5
    for file in files:
        before = file.read_bytes()
        damage(file)
        fresh = new_replay()
        note = fresh.load(tmp_path / "1")
        assert note is not None and "it starts empty" in note, file
        assert fresh.sizes() == [0, 0] and fresh.inserted == 0
        assert_equal(everything(fresh), everything(new_replay()))
        file.write_bytes(before)
    assert new_replay().load(tmp_path / "1") is None


def test_a_half_written_snapshot_is_not_read(tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 9)
    replay.save(tmp_path / "1")
    replay.finish()
    half = tmp_path / "2.tmp"
    (tmp_path / "1").rename(half)
    fresh = new_replay()
    assert "starts empty" in str(fresh.load(tmp_path / "2"))
    assert fresh.sizes() == [0, 0]
    # The next one that is complete takes its place.
    (half / "unrolls_0_0.npy").write_bytes(b"half")
    replay.save(tmp_path / "2")
    replay.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
    assert fresh.load(tmp_path / "2") is None
    assert_equal(everything(fresh), everything(replay))


# Each of these has as many places for sequences as the replay that was saved, or as many arrays.
OTHERS: dict[str, Callable[[], HostReplay]] = {
    "more devices": lambda: new_replay(learners=4, num_envs=B // 2),
    "one device": lambda: new_replay(learners=1, num_envs=2 * B),
    "a larger one": lambda: new_replay(capacity=100),
    "fewer lanes with more environments": lambda: new_replay(lanes=1, num_envs=2 * B),
    "shorter unrolls": lambda: new_replay(unroll_length=1),
    "longer sequences": lambda: new_replay(span=3, capacity=4 * B * 5),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_replay_of_another_size_is_not_read(other: str, tmp_path: Path) -> None:
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 20)
    replay.save(tmp_path / "1")
    replay.finish()
    fresh = OTHERS[other]()
    before = everything(fresh)
    assert "no replay of this size" in str(fresh.load(tmp_path / "1"))
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
    replay, feed = new_replay(capacity=2_000), Feed(0)
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
    assert new_replay(capacity=2_000).load(tmp_path / "1") is None
    again = new_replay(capacity=2_000).load(tmp_path / "2")
    assert again == "the replay is that of turn(s) [1], the checkpoint that of 2"


def test_all_hosts_go_on_with_a_replay_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may leave the hosts with snapshots of different turns, or one of them with none."""
    replay, feed = new_replay(), Feed(0)
    feed.into(replay, 9)
    replay.save(tmp_path / "8")
    replay.finish()

    def fresh(*others: object) -> tuple[HostReplay, str | None]:
        answers = iter(others)
        gather = lambda mine: np.stack([mine, np.array(next(answers))])  # noqa: E731
        monkeypatch.setattr("sebulba.devices.distributed.gather", gather)
        again = new_replay()
        return again, again.load(tmp_path / "8")

    again, note = fresh(-1)
    assert again.sizes() == [0, 0] and again.inserted == 0
    assert note is not None and "(host(s) [1]): it starts empty" in note
    fewer = [replay.inserted - 4, replay.learned_from - 4, 3, 2, 8]
    again, note = fresh(4, fewer)
    assert again.sizes() == replay.sizes()
    assert [again.inserted, again.learned_from, again.trained] == [*fewer[:2], 0]
    assert note == "the replay is that of turn(s) [4, 8], the checkpoint that of 8"


def test_hosts_with_snapshots_of_different_turns_learn_in_the_same_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host was killed while it wrote the later snapshot; its earlier one has no sequence."""
    own, turns = {}, {"early": 2, "late": 9}
    for name, count in turns.items():
        replay = new_replay()
        Feed(0).into(replay, count)
        replay.save(tmp_path / name / str(count))
        replay.finish()
        own[name] = [replay.inserted, replay.learned_from, replay.trained, replay._samples, count]
    due = {}
    for name, other in (("early", "late"), ("late", "early")):
        answers = iter([turns[other], own[other]])
        gather = lambda mine, its=answers: np.stack([mine, np.array(next(its))])  # noqa: E731
        monkeypatch.setattr("sebulba.devices.distributed.gather", gather)
        replay, feed = new_replay(), Feed(1)
        assert replay.load(tmp_path / name / "9") is not None
        due[name] = [feed.into(replay) for _ in range(12)]
    assert due["early"] == due["late"] and sum(due["early"]) > 0
