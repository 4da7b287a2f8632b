"""What a run directory keeps."""

from __future__ import annotations

import time
from pathlib import Path

import jax.numpy as jnp
from whole_runs import tiny

from sebulba import CheckpointConfig
from sebulba.rundir.directory import RunDirectory
from sebulba.rundir.reading import checkpoint_turns, has_checkpoints


def save(directory: RunDirectory, turn: int) -> Path:
    state = {"weights": jnp.arange(3.0)}
    replay = directory.save(turn, state, state, {"steps": turn, "updates": turn})
    assert replay is not None
    deadline = time.monotonic() + 20
    while not has_checkpoints(replay.parents[2]) or checkpoint_turns(replay.parents[2])[-1] < turn:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return replay


def replays(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "replay" / "host-0").iterdir())


def test_a_replay_stays_until_there_is_a_newer_one_with_its_checkpoint(tmp_path: Path) -> None:
    config = tiny(out=tmp_path, checkpoint=CheckpointConfig(max_to_keep=2))
    with RunDirectory(config, "vtrace") as directory:
        directory.begin(0)
        first = save(directory, 1)
        first.mkdir(parents=True)
        save(directory, 2).with_suffix(".tmp").mkdir()  # Still being written.
        (first.parent / "9").mkdir()  # As of a checkpoint that was never complete.
        directory.check()
        assert replays(tmp_path) == ["1", "2.tmp", "9"]
        (first.parent / "2.tmp").rename(first.parent / "2")
        directory.check()
        assert replays(tmp_path) == ["2", "9"]
        save(directory, 3).mkdir()
    assert replays(tmp_path) == ["3", "9"]


def test_a_replay_that_was_being_replaced_goes_with_the_older_ones(tmp_path: Path) -> None:
    """As a kill leaves it between giving the old one another name and removing it."""
    config = tiny(out=tmp_path, checkpoint=CheckpointConfig(max_to_keep=2))
    with RunDirectory(config, "vtrace") as directory:
        directory.begin(0)
        first = save(directory, 1)
        for name in ("1.old", "2.old", "9.old"):
            (first.parent / name).mkdir(parents=True)
        save(directory, 2).mkdir()
        directory.check()
        assert replays(tmp_path) == ["2", "9.old"]
