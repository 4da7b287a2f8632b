"""Whole runs of R2D2: their metrics, their repetition, their replay in checkpoints."""

from __future__ import annotations

import dataclasses
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from whole_runs import (
    HookedEnv,
    HookedEnvs,
    assert_same,
    hooked_learner,
    on,
    rows_of,
    tensorboard_events,
)
from whole_runs import tiny_r2d2 as tiny

import sebulba
from sebulba import (
    NetworkConfig,
    R2D2Config,
    ReplayCheckpointConfig,
    ReplayConfig,
    algorithms,
    inference,
)
from sebulba.cli import main as cli
from sebulba.learners import R2D2Learner
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in

EXTRA_KEYS = {
    "replay_size",
    "samples_per_insert",
    "priority_quantile_10",
    "priority_quantile_50",
    "priority_quantile_90",
    "q_mean",
    "td_error",
    "importance_weight_mean",
    "epsilon_min",
    "epsilon_max",
    "loss",
    "gradient_norm",
}


def train(config: R2D2Config, num_devices: int = 1, **parts: Any) -> sebulba.TrainResult:
    return sebulba.train(config, topology=on(num_devices), progress=False, **parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"storage": "device", "num_microbatches": 2, "core": "lstm"},
        {"storage": "host", "samples_per_insert": 0.5},
    ],
    ids=["device", "host"],
)
def test_metrics(changes: dict[str, Any], tmp_path: Path) -> None:
    network = NetworkConfig(hidden_sizes=(8,), core_size=8, core=changes.pop("core", "none"))
    config = tiny(out=tmp_path / "run", network=network, **changes)
    result = train(config, 3)
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["update"] == result.updates > 4
    last = rows[-1]
    assert last.keys() >= EXTRA_KEYS
    assert all(np.isfinite(last[name]) for name in EXTRA_KEYS)
    assert rows[0]["replay_size"] == 0 and last["replay_size"] == 120
    # Less than one update is left to do.
    assert (
        config.replay.samples_per_insert - 0.1
        < last["samples_per_insert"]
        <= config.replay.samples_per_insert
    )
    quantiles = [last[f"priority_quantile_{q}"] for q in (10, 50, 90)]
    assert quantiles == sorted(quantiles) and quantiles[0] > 0
    # A row without histograms comes before the first unroll that completes a sequence.
    shown: dict[str, list[Any]] = {"action/action": [], "training/priority": []}
    for event in tensorboard_events(tmp_path / "run"):
        for value in event.summary.value:
            if value.HasField("histo"):
                shown[value.tag].append(value.histo)
    actions, priorities = shown.values()
    assert sum(sum(histogram.bucket) for histogram in actions) == last["steps"]
    assert actions[-1].min == -0.5 and list(actions[-1].bucket_limit) == [0.5, 1.5, 2.5]
    assert sum(priorities[-1].bucket) == 120 and len(priorities) < len(actions) == len(rows)
    assert priorities[-1].min == 0 and priorities[-1].max >= quantiles[-1]
    assert last["epsilon_max"] == pytest.approx(0.4)
    assert last["epsilon_min"] == pytest.approx(0.4**8)


def test_updates_before_learning_starts_and_after() -> None:
    """Two unrolls of each actor complete no sequence; then 12 a turn; learning starts at 48."""
    result = train(tiny(log_every=1, total_steps=800, samples_per_insert=0.5))
    sizes = [row["replay_size"] for row in result.metrics]
    assert sizes[:9] == [0, 0, 0, 0, 12, 24, 36, 48, 60]
    assert [row["update"] for row in result.metrics][:12] == [0] * 8 + [1, 1, 2, 2]


def test_what_an_update_is_told_does_not_depend_on_when_rows_are_due() -> None:
    """Updates are due in every other turn; the steps of the turns between them count too."""

    def progress(log_every: int) -> list[float]:
        told = []

        class Told(R2D2Learner):
            def update(self, state: Any, progress: float) -> Any:
                told.append(progress)
                return super().update(state, progress)

        config = tiny(log_every=log_every, total_steps=1200, samples_per_insert=0.5)
        train(config, algorithm=dataclasses.replace(algorithms.R2D2, make_learner=Told))
        return told

    told = progress(1)
    assert len(told) > 5 and told == progress(100)


@pytest.mark.parametrize("lag", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_runs_with_one_seed_are_bit_identical_whatever_the_timing(lag: str) -> None:
    def run(delays: int | None) -> sebulba.TrainResult:
        config = tiny(policy_lag=lag, log_every=1, total_steps=800)
        wait = random.Random(delays)

        def delay(_: HookedEnv | int) -> None:
            if delays is not None:
                time.sleep(wait.choice((0.0, 0.0, 0.002, 0.01)))

        hooked = hooked_learner(delay, algorithms.R2D2)
        return train(config, 2, make_env=HookedEnvs(on_step=delay), algorithm=hooked)

    one, other = run(None), run(1)
    assert_same(one.params, other.params)
    assert one.updates == other.updates > 4
    for name in ("loss", "td_error", "priority_quantile_50", "episode_return_mean"):
        assert [row.get(name) for row in one.metrics] == [row.get(name) for row in other.metrics]


def test_a_replay_is_written_once_for_each_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last turn of the run is one of those that write a checkpoint."""
    written = []
    save = R2D2Learner.save_replay

    def spy(self: R2D2Learner, path: Path) -> None:
        written.append(int(path.name))
        save(self, path)

    monkeypatch.setattr(R2D2Learner, "save_replay", spy)
    saving = ReplayCheckpointConfig(interval=1, save_replay=True)
    train(tiny(out=tmp_path / "run", total_steps=100, checkpoint=saving))
    assert written == sorted(set(written)) and len(written) > 1


def test_actors_have_their_part_of_the_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, Any] = {}
    make = inference.Actor.__init__

    def spy(self: inference.Actor, **parts: Any) -> None:
        given[parts["lane"]] = parts["exploration"]
        make(self, **parts)

    monkeypatch.setattr(inference.Actor, "__init__", spy)
    train(tiny(total_steps=100, envs_per_actor=4))
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    np.testing.assert_allclose(np.concatenate([given[0](0.0), given[1](0.9)]), expected, rtol=1e-6)


def test_training_explores_by_the_ladder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    others = []
    insert = R2D2Learner.add

    def spy(self: R2D2Learner, unrolls: Any) -> int:
        for unroll in unrolls:
            for shard in unroll.shards:
                others.append(np.asarray(shard.actor.action != shard.actor.extras.argmax(axis=-1)))
        return insert(self, unrolls)

    monkeypatch.setattr(R2D2Learner, "add", spy)
    train(tiny(total_steps=200, epsilon_base=0.0, evaluation_epsilon=1.0))
    assert np.mean(others) == 0


class Watched:
    """Keeps the learner of a run with its ``algorithm``, and what its replay held at the start."""

    def __init__(self) -> None:
        self.algorithm = dataclasses.replace(algorithms.R2D2, make_learner=self._make_learner)
        self.state: Any = None

    def _make_learner(self, *parts: Any) -> R2D2Learner:
        self.learner = learner = R2D2Learner(*parts)
        load, init = learner.load_replay, learner.init

        def watch_load(path: Path) -> str | None:
            note = load(path)
            self.note, self.loaded = note, contents(learner)
            return note

        def watch_init(key: jax.Array) -> Any:
            self.state = init(key)
            assert_same(self.state.target, self.state.train.params)
            return self.state

        learner.load_replay, learner.init = watch_load, watch_init  # type: ignore[method-assign]
        return learner


def contents(learner: R2D2Learner) -> list[Any]:
    """Everything in the replay, and its counts."""
    replay = learner.replay
    parts: list[Any] = [replay.inserted, replay.learned_from, replay.trained, replay._samples]
    for shard in replay._shards:
        parts.append(shard.state())
        parts += [np.array(b) for place in shard.used() for b in shard.storage.blocks(*place)]
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("saved", [True, False])
def test_an_interrupted_run_goes_on_with_its_replay(saved: bool, tmp_path: Path) -> None:
    config = tiny(
        out=tmp_path,
        total_steps=100_000,
        storage="host" if saved else "device",
        checkpoint=ReplayCheckpointConfig(interval=7, save_replay=saved),
    )

    def interrupt(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 80:
            signal.raise_signal(signal.SIGINT)

    first = Watched()
    with pytest.raises(KeyboardInterrupt):
        train(config, make_env=HookedEnvs(on_step=interrupt), algorithm=first.algorithm)
    last = rows_of(tmp_path)[-1]
    assert last["replay_size"] == 120
    assert (tmp_path / "replay").is_dir() == saved
    more = dataclasses.replace(config, resume=True, total_steps=last["steps"] + 700)
    second = Watched()
    result = train(more, make_env=HookedEnvs(), algorithm=second.algorithm)
    after = [row for row in rows_of(tmp_path) if row["steps"] > last["steps"]]
    assert second.note is None
    if saved:
        assert_same(second.loaded, contents(first.learner))
        assert [path.name for path in (tmp_path / "replay" / "host-0").iterdir()] == [
            str(Checkpointer(checkpoints_in(tmp_path)).latest())
        ]
        assert all(row["replay_size"] == 120 for row in after)
        assert after[0]["update"] > last["update"]
    else:
        assert second.loaded[:4] == [0, 0, 0, 0]
        assert after[0]["replay_size"] == 0 and after[0]["update"] == last["update"]
    assert result.updates > last["update"]


def test_checkpoints_of_turns_without_updates_have_their_counts(tmp_path: Path) -> None:
    replay = ReplayConfig(capacity=120, min_size=100)
    every = ReplayCheckpointConfig(interval=2)
    result = train(tiny(out=tmp_path, total_steps=400, replay=replay, checkpoint=every))
    checkpoints = Checkpointer(checkpoints_in(tmp_path))
    latest = checkpoints.latest()
    assert latest is not None and result.updates < latest
    counts = checkpoints.counts(latest)
    assert counts["steps"] == rows_of(tmp_path)[-1]["steps"]


@pytest.mark.slow
def test_too_few_steps_to_learn_anything_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    config = tiny(replay=ReplayConfig(capacity=120, min_size=100), log_every=1)
    enough = sebulba.train(config, topology=on(1))
    assert "learning starts after" not in capfd.readouterr().out
    first = next(row["steps"] for row in enough.metrics if row["update"])
    few = dataclasses.replace(config, total_steps=300)
    assert sebulba.train(few, topology=on(1)).updates == 0
    said = capfd.readouterr().out
    found = re.search(r"total_steps is 300, but learning starts after about (\d+)", said)
    # One step in ten is an auto-reset, which is not counted.
    assert found is not None and float(found[1]) * 0.9 == pytest.approx(first, abs=60)


@pytest.mark.slow
def test_a_replay_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    config = tiny(
        out=tmp_path, checkpoint=ReplayCheckpointConfig(save_replay=True), total_steps=700
    )
    train(config)
    replay = dataclasses.replace(config.replay, capacity=240)
    more = dataclasses.replace(config, resume=True, total_steps=800, replay=replay)
    watched = Watched()
    train(more, algorithm=watched.algorithm)
    assert watched.note is not None and "it starts empty" in watched.note


def test_continuous_actions_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "r2d2-catch", "--env", "Pendulum-v1", "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    message = " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert "Pendulum-v1" in message and "one discrete action" in message and "V-trace" in message
    assert not (tmp_path / "run").exists()
