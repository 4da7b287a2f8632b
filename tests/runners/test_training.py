"""Whole runs: they learn, count what they did, and leave the process as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from whole_runs import HookedEnvs, on, rows_of, tiny

import sebulba
from sebulba import (
    CheckpointConfig,
    ConfigError,
    OptimizerConfig,
    algorithms,
    envs,
    presets,
)
from sebulba.learners import VTraceLearner
from sebulba.runners.sebulba import SebulbaRun
from sebulba.types import Env, EnvSpec, Timestep

KEYS = {
    "update",
    "steps",
    "frames",
    "seconds",
    "steps_per_second",
    "frames_per_second",
    "episodes",
    "episode_return_mean",
    "episode_length_mean",
    "episode_return_mean_100",
    "policy_lag_mean",
    "policy_lag_max",
    "learner_queue_wait_seconds",
    "actor_queue_wait_seconds",
    "actor_environment_seconds",
    "actor_act_seconds",
    "actor_transfer_seconds",
    "actor_params_wait_seconds",
    "loss",
    "policy_loss",
    "baseline_loss",
    "entropy",
    "value_mean",
    "gradient_norm",
}


def train(config: sebulba.Config, **parts: Any) -> sebulba.TrainResult:
    parts.setdefault("topology", on(1))
    return sebulba.train(config, progress=False, **parts)


@pytest.mark.parametrize("num_devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_learns_catch(num_devices: int) -> None:
    config = dataclasses.replace(
        presets.get("vtrace-catch"),
        total_steps=24_000,
        envs_per_actor=12,
        batch_size=12,
        unroll_length=10,
        log_every=25,
        policy_lag="1",  # The same data whatever else the machine does.
        discount=0.95,
        optimizer=sebulba.OptimizerConfig(name="adam", learning_rate=1e-2, decay_to_zero=False),
    )
    result = train(config, topology=on(num_devices))
    returns = [row["episode_return_mean"] for row in result.metrics]
    assert max(returns) >= 0.95, returns


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_catch_preset_solves_it(seed: int) -> None:
    config = dataclasses.replace(presets.get("vtrace-catch"), seed=seed)
    assert train(config).metrics[-1]["episode_return_mean"] >= 0.95


def test_what_a_run_had_on_devices_is_free_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the collector, which counts objects and knows nothing of the devices' memory."""
    runs: list[weakref.ref[SebulbaRun]] = []
    begin = SebulbaRun.run

    def noted(self: SebulbaRun, notes: Sequence[str] = ()) -> None:
        runs.append(weakref.ref(self))
        begin(self, notes)

    monkeypatch.setattr(SebulbaRun, "run", noted)
    gc.disable()
    try:
        train(tiny())
        assert runs[0]() is None
    finally:
        gc.enable()


def test_the_wait_for_the_last_update_of_a_row_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    collect = SebulbaRun._collect

    def slowly(self: SebulbaRun, under_way: int, polls: bool = True) -> None:
        collect(self, under_way, polls)
        if not under_way:
            time.sleep(0.1)

    monkeypatch.setattr(SebulbaRun, "_collect", slowly)
    assert all(row["learner_update_seconds"] >= 0.1 for row in train(tiny()).metrics[:-1])


@pytest.mark.parametrize("placement", ["split", "shared"])
def test_sizes_that_the_learners_do_not_divide_are_refused(placement: Any) -> None:
    config = tiny(envs_per_actor=3, batch_size=3, placement=placement)
    with pytest.raises(ConfigError, match="Set --envs-per-actor 4 --batch-size 4") as refused:
        train(config, topology=on(4, 2))
    # Which is refused where every device acts and learns.
    assert ("--num-inference-devices" in str(refused.value)) == (placement == "split")


def test_run_directory(tmp_path: Path) -> None:
    config = tiny(out=tmp_path / "below" / "run")
    result = train(config)
    assert config.out is not None
    names = {path.name for path in config.out.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "tensorboard", "checkpoints"}
    saved = json.loads((config.out / "config.json").read_text())
    assert saved["env"] == "sebulba/Catch" and saved["total_steps"] == 200
    rows = rows_of(config.out)
    assert [row["update"] for row in rows] == [row["update"] for row in result.metrics]
    assert all(set(row) >= KEYS for row in rows)
    assert rows[-1]["update"] == result.updates
    assert rows[-1]["steps"] >= 200
    assert sebulba.read_metrics(config.out) == rows


@pytest.mark.parametrize("total_steps", [150, 200, 201, 400])
def test_every_update_is_logged_once_and_the_last_always(total_steps: int) -> None:
    result = train(tiny(total_steps=total_steps, log_every=2))
    updates = [row["update"] for row in result.metrics]
    assert updates == sorted(set(updates))
    assert updates[-1] == result.updates
    assert all(row["loss"] is not None for row in result.metrics)


def test_steps_are_those_of_the_environments_without_auto_resets() -> None:
    made = HookedEnvs()
    result = train(tiny(total_steps=1000), make_env=made)
    unrolls = result.updates
    # The environments run on after the last unroll that was learned from.
    learned = [
        env.firsts[: 5 * (unrolls // 2 + (env_lane < unrolls % 2))]
        for env_lane, env in enumerate(in_lanes(made))
    ]
    calls, firsts = sum(len(f) for f in learned), sum(sum(f) for f in learned)
    assert calls == unrolls * 5
    assert firsts > 50
    assert result.metrics[-1]["steps"] == calls * 4 - firsts >= 1000


def in_lanes(made: HookedEnvs) -> list[Any]:
    """The environments in the order of their actors, whatever thread came first."""
    config = tiny()
    seeds = [
        int(np.random.SeedSequence([config.seed, lane, 0]).generate_state(1)[0] >> 1)
        for lane in (0, 1)
    ]
    return sorted(made.made, key=lambda env: seeds.index(env.seed))


class Scaled:
    """Catch with another reward scale and frame skip."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self._env = envs.Catch(num_envs, seed)
        self.spec = self._env.spec._replace(frame_skip=4)
        self.reset, self.close = self._env.reset, self._env.close

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        timestep = self._env.step(action)
        return timestep._replace(reward=timestep.reward * np.float32(7))


def test_frames_are_steps_times_the_frame_skip() -> None:
    for row in train(tiny(), make_env=Scaled).metrics:
        assert row["frames"] == 4 * row["steps"]
        assert row["frames_per_second"] == pytest.approx(4 * row["steps_per_second"])


def test_returns_are_the_true_ones_although_learning_clips_them() -> None:
    config = tiny(total_steps=1000, reward_clip=1.0, reward_scale=0.1, log_every=10**6)
    (row,) = train(config, make_env=Scaled).metrics
    mean = row["episode_return_mean"]
    # Every return is 7 or -7.
    assert mean * row["episodes"] / 7 == pytest.approx(round(mean * row["episodes"] / 7))
    assert -7 <= mean <= 7 and abs(mean) > 1
    assert row["episode_length_mean"] == 9


def test_notebook_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(tiny())
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out == ""
    assert set(result.metrics[-1]) >= KEYS
    assert result.config == tiny()


def test_progress_is_shown_where_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    sebulba.train(tiny(), topology=on(1))
    output = capfd.readouterr().out
    assert "sebulba/Catch" in output and "100.0%" in output


def test_result_can_act_and_be_evaluated() -> None:
    result = train(tiny(), topology=on(4, 2))
    for leaf in jax.tree.leaves(result.params):
        assert leaf.devices() == {jax.devices()[2]}
    evaluation = sebulba.evaluate(result.agent, result.params, result.make_env, episodes=3)
    assert len(evaluation.returns) == 3


def settings() -> dict[str, Any]:
    """What belongs to the whole process, or to this thread."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return {
        "handlers": [signal.getsignal(number) for number in numbers],
        "niceness": os.getpriority(os.PRIO_PROCESS, threading.get_native_id()),
        "jax": dict(jax.config.values),
        "environment": dict(os.environ),
    }


class Breaks(envs.Catch):
    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("make_env", [envs.Catch, Breaks])
def test_training_leaves_the_process_as_it_was(make_env: Any, tmp_path: Path) -> None:
    before = settings()
    niceness: list[int] = []

    def noting(num_envs: int, seed: int) -> Env:
        niceness.append(settings()["niceness"])
        env: Env = make_env(num_envs, seed)
        return env

    with contextlib.suppress(RuntimeError):
        train(tiny(out=tmp_path), make_env=noting)
    assert settings() == before
    if sys.platform == "linux" and before["niceness"] < 19:
        # The actors' threads have another, which is theirs alone.
        assert set(niceness) > {before["niceness"]}


def test_one_run_after_another_in_one_process() -> None:
    updates = [train(tiny(seed=seed)).updates for seed in (0, 1)]
    assert updates[0] > 0 and updates[1] > 0


class OneStep:
    """Episodes of one step, so that every second step of an environment is an auto-reset."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self._env = envs.Catch(num_envs, seed)
        self._first = np.zeros(num_envs, bool)

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    def reset(self) -> Timestep:
        self._first = np.ones_like(self._first)
        return self._env.reset()._replace(first=self._first)

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self._first = ~self._first
        last = ~self._first
        timestep = self._env.step(action)
        ones = np.ones(len(last), np.float32)
        return timestep._replace(reward=last * ones, discount=1 - last * ones, first=self._first)

    def close(self) -> None:
        self._env.close()


def test_the_learning_rate_reaches_zero_at_the_last_counted_step() -> None:
    """Half of the steps are auto-resets: they make batches larger, and training no shorter."""
    config = tiny(total_steps=400, optimizer=OptimizerConfig(name="adam", learning_rate=1e-2))
    seen = []

    class Watched(VTraceLearner):
        def update(self, state: Any, *more: Any) -> Any:
            before = jax.device_get(self.params(state))
            state, logs = super().update(state, *more)
            after = jax.device_get(self.params(state))
            moved = jax.tree.map(lambda one, other: np.abs(one - other).max(), before, after)
            seen.append(max(jax.tree.leaves(moved)))
            return state, logs

    algorithm = dataclasses.replace(algorithms.VTRACE, make_learner=Watched)
    train(config, algorithm=algorithm, make_env=OneStep)
    assert len(seen) == 40  # Of 20 steps, half of which count.
    assert min(seen[:30]) > 1e-3 and seen[-1] < 0.1 * seen[0]


def test_a_run_whose_directory_is_removed_ends(tmp_path: Path) -> None:
    """Orbax would make it anew, without a config."""
    out = tmp_path / "run"

    class Removing(envs.Catch):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == 30:
                shutil.rmtree(out)
            return super().step(action)

    config = tiny(
        out=out,
        total_steps=100_000,
        actors_per_device=1,
        checkpoint=CheckpointConfig(interval=20),
    )
    with pytest.raises(
        FileNotFoundError, match=r"no config.json any more: it was removed or moved"
    ):
        sebulba.train(config, make_env=Removing, topology=on(1), progress=False)
