"""Rows on disk: what is kept, what is dropped on resume, and what TensorBoard gets."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import SessionLog
from whole_runs import tensorboard_events, tensorboard_steps

from sebulba.metrics import writer as metrics
from sebulba.metrics.writer import MetricsWriter, tidied


def row(update: int, **extra: float | int | None) -> dict[str, float | int | None]:
    return {"update": update, "steps": update * 100, **extra}


def write(directory: Path, updates: range, resume_steps: int | None = None) -> None:
    with MetricsWriter(directory, resume_steps) as writer:
        for update in updates:
            writer.write(row(update))


def updates(directory: Path) -> list[int]:
    return [row["update"] for row in metrics.read(directory)]


def test_a_row_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "run", None) as writer:
        writer.write(row(1, loss=0.5))
        assert metrics.read(tmp_path / "run") == [{"update": 1, "steps": 100, "loss": 0.5}]


def test_tensorboard_has_a_row_as_soon_as_it_is_written(tmp_path: Path) -> None:
    """A kill would otherwise leave a gap, since a resumed run does not repeat these rows."""
    with MetricsWriter(tmp_path, None) as writer:
        for update in range(1, 4):
            writer.write(row(update))
            assert tensorboard_steps(tmp_path) == [100 * n for n in range(1, update + 1)]


def test_numbers_are_json_of_seven_digits(tmp_path: Path) -> None:
    values = {"a": 1 / 3, "b": float("nan"), "c": float("-inf"), "d": None, "e": 2**40}
    numpy_values = {"f": np.float32(0.1), "g": np.int64(7), "h": 1.5e-9}
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(tidied(row(1, **values, **numpy_values)))

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    got = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    expected = {"a": 0.3333333, "b": None, "c": None, "d": None, "e": 2**40}
    assert got == row(1) | expected | {"f": 0.1, "g": 7, "h": 1.5e-9}
    assert isinstance(got["e"], int) and isinstance(got["g"], int)


def test_resume_drops_the_rows_it_will_repeat(tmp_path: Path) -> None:
    write(tmp_path, range(1, 6))
    write(tmp_path, range(4, 8), resume_steps=300)
    assert updates(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["metrics.jsonl"]


def test_resume_drops_rows_in_which_a_replay_was_filled(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, None) as writer:
        for steps in (5200, 5300, 5400):
            writer.write({"update": 5, "steps": steps})
    write(tmp_path, range(54, 55), resume_steps=5200)
    assert [row["steps"] for row in metrics.read(tmp_path)] == [5200, 5400]


def test_resume_mends_a_torn_last_line(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 3, "st')
    assert updates(tmp_path) == [1, 2]
    write(tmp_path, range(3, 5), resume_steps=200)
    assert updates(tmp_path) == [1, 2, 3, 4]


def test_resume_survives_a_crash_while_it_drops_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, range(1, 6))

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(KeyboardInterrupt):
        MetricsWriter(tmp_path, 300)
    assert updates(tmp_path) == [1, 2, 3, 4, 5]


def test_resume_without_metrics_starts_a_file(tmp_path: Path) -> None:
    write(tmp_path, range(4, 6), resume_steps=300)
    assert updates(tmp_path) == [4, 5]


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    with pytest.raises(FileExistsError, match="another directory"):
        MetricsWriter(tmp_path, None)
    assert updates(tmp_path) == [1, 2]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n{"upd\n{"update": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        metrics.read(tmp_path)


@pytest.mark.parametrize("missing", ["update", "steps"])
def test_a_row_without_its_axes_is_refused(tmp_path: Path, missing: str) -> None:
    bad = row(1)
    del bad[missing]
    with MetricsWriter(tmp_path, None) as writer, pytest.raises(ValueError, match=missing):
        writer.write(bad)


def test_tensorboard_gets_the_same_scalars_over_steps(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(row(3, episode_return_mean=21.5, policy_loss=0.25, entropy=None))
    scalars = [event for event in tensorboard_events(tmp_path) if event.HasField("summary")]
    assert [event.step for event in scalars] == [300]
    assert {value.tag: value.simple_value for value in scalars[0].summary.value} == {
        "training/update": 3,
        "episode/episode_return_mean": 21.5,
        "loss/policy_loss": 0.25,
    }


def test_tensorboard_forgets_what_a_resume_repeats(tmp_path: Path) -> None:
    write(tmp_path, range(1, 6))
    write(tmp_path, range(4, 6), resume_steps=300)
    starts = [event for event in tensorboard_events(tmp_path) if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in starts] == [(301, SessionLog.START)]
    assert [event.step for event in tensorboard_events(tmp_path) if event.HasField("summary")] == [
        *(100, 200, 300, 400, 500),
        *(400, 500),
    ]


def test_a_full_disk_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with MetricsWriter(tmp_path, None) as writer:
        monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.write", full)
        with pytest.raises(OSError, match="No space left"):
            writer.write(row(1))


def test_no_thread_and_a_second_close(tmp_path: Path) -> None:
    before = threading.active_count()
    writer = MetricsWriter(tmp_path, None)
    writer.write(row(1))
    assert threading.active_count() == before
    writer.close()
    writer.close()
