"""Evaluation while training goes on."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clockwork import Clockwork
from paths import ROOT
from whole_runs import (
    EPISODES,
    assert_same,
    on,
    rows_of,
    tensorboard_steps,
    tiny,
    tiny_evaluated,
    tiny_saved_and_evaluated,
)

import sebulba
from sebulba import EvaluationConfig, envs
from sebulba.rundir.reading import checkpoint_turns
from sebulba.runtime import threads
from sebulba.types import Env, Timestep


def train(config: sebulba.Config, make_env: Any = envs.Catch) -> sebulba.TrainResult:
    return sebulba.train(config, make_env=make_env, topology=on(1), progress=False)


def evaluations(rows: Any) -> dict[int, float]:
    """The mean return of each evaluation by its update."""
    return {
        row["evaluation_update"]: row["evaluation_return_mean"]
        for row in rows
        if "evaluation_update" in row
    }


@pytest.mark.slow
def test_evaluation_changes_nothing_and_depends_on_seed_and_version_alone(tmp_path: Path) -> None:
    without = train(tiny(policy_lag="1"))
    assert not any(name.startswith("evaluation") for row in without.metrics for name in row)
    result = train(tiny_evaluated(out=tmp_path))
    assert_same(result.params, without.params)
    found = evaluations(result.metrics)
    slow = train(tiny_evaluated(), lambda num_envs, seed: Slow(num_envs, seed))
    assert evaluations(slow.metrics) == found
    # One for each 60 of the 200 steps, and the last one of the final parameters.
    assert len(found) == 4 and max(found) == result.updates
    last = result.metrics[-1]
    assert last["evaluation_steps"] == last["steps"] and last["episode_return_mean"] is not None
    assert last["evaluation_best_return_mean"] == max(found.values())
    assert evaluations(rows_of(tmp_path)) == found
    assert tensorboard_steps(tmp_path)[-1] == last["steps"]
    # The best of them holds the parameters that were evaluated: the same episodes come again.
    best = max(found, key=lambda update: (found[update], -update))
    seed = np.random.SeedSequence(0, spawn_key=(best,)).generate_state(1)[0] >> 1
    again = sebulba.evaluate_run(
        tmp_path, EPISODES, seed=int(seed), checkpoint="best", make_env=envs.Catch
    )
    assert again.update == best
    assert again.returns.mean() == pytest.approx(found[best])  # Rows have 7 digits.
    assert sebulba.load(tmp_path, checkpoint="best", make_env=envs.Catch).act(np.zeros((10, 5))) < 3
    # When the complete run goes on, what has been evaluated is not evaluated again.
    longer = train(tiny_evaluated(out=tmp_path, resume=True, total_steps=300))
    made = [row["evaluation_steps"] for row in rows_of(tmp_path) if "evaluation_steps" in row]
    assert made == sorted(set(made)) and made[-1] == longer.metrics[-1]["steps"]


def test_a_run_that_is_resumed_with_evaluations_has_left_none_out(tmp_path: Path) -> None:
    train(tiny(policy_lag="1", out=tmp_path))
    result = train(tiny_evaluated(out=tmp_path, resume=True, total_steps=300))
    found = [row for row in result.metrics if "evaluation_update" in row]
    assert found[0]["evaluation_steps"] > 200 and found[0]["evaluation_skipped"] == 0


def test_the_last_evaluation_is_of_the_moment_of_the_last_row() -> None:
    """Though it waits for the one before: plots over time draw it there."""
    evaluation = EvaluationConfig(interval=190, episodes=EPISODES)
    config = tiny(evaluation=evaluation)
    last = train(config, lambda num_envs, seed: Slow(num_envs, seed)).metrics[-1]
    assert last["evaluation_seconds"] == last["seconds"]


class Slow(envs.Catch):
    """Takes its time in evaluations, so that training waits for them."""

    def step(self, action: Any) -> Timestep:
        time.sleep(0.01 * (self.spec.num_envs == EPISODES))
        return super().step(action)


def test_the_failure_of_an_evaluation_ends_the_run() -> None:
    class Breaks(envs.Catch):
        def step(self, action: Any) -> Timestep:
            if self.spec.num_envs == EPISODES:
                raise RuntimeError("broken on purpose")
            return super().step(action)

    with pytest.raises(RuntimeError, match="broken on purpose") as caught:
        train(tiny_evaluated(total_steps=10**6), Breaks)
    assert "in thread evaluation on device" in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_a_stuck_evaluation_does_not_keep_the_run_from_ending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "JOIN_SECONDS", 0.5)
    release = threading.Event()

    class Stuck(envs.Catch):
        def step(self, action: Any) -> Timestep:
            if self.spec.num_envs == EPISODES and threading.current_thread().name == "evaluation":
                release.wait()
            return super().step(action)

    # The only evaluation is that of the final parameters.
    evaluation = EvaluationConfig(interval=10**6, episodes=EPISODES)
    config = tiny(out=tmp_path, evaluation=evaluation, stall_seconds=3.0)
    try:
        with (
            pytest.warns(RuntimeWarning, match=r"threads \['evaluation'\] did not end"),
            pytest.raises(sebulba.StallError, match=r"the evaluation has been starting its env"),
        ):
            train(config, Stuck)
    finally:
        release.set()
    assert "in step" in capfd.readouterr().err
    # What was learned is there.
    steps = rows_of(tmp_path)[-1]["steps"]
    assert steps >= config.total_steps
    assert sebulba.load_run(tmp_path).state == "complete"
    assert sebulba.evaluate_run(tmp_path, 1, make_env=envs.Catch).update > 0


PROGRAM = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from clockwork import Clockwork
from whole_runs import EPISODES, on, tiny_saved_and_evaluated
import sebulba

out = Path(sys.argv[1])

class Kills(Clockwork):
    def step(self, action):
        if self._num_envs == EPISODES and all(
            any(path.name.isdigit() for path in (out / folder).glob("*"))
            for folder in ("best", "checkpoints")
        ):
            {how}
        return super().step(action)

sebulba.train(tiny_saved_and_evaluated(out), make_env=Kills, topology=on(1), progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 15); time.sleep(600)", 1),
    ],
)
def test_a_run_that_ends_in_an_evaluation_goes_on(how: str, code: int, tmp_path: Path) -> None:
    """After a kill at once; after SIGTERM with a checkpoint, though the evaluation hangs."""
    out = tmp_path / "run"
    config = tiny_saved_and_evaluated(out)
    whole = train(dataclasses.replace(config, out=None), Clockwork)
    words = [sys.executable, "-c", PROGRAM.format(how=how), str(out)]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == code, process.stderr
    assert code != 1 or "Interrupted" in process.stderr
    before, saved = rows_of(out), checkpoint_turns(out)
    resumed = train(dataclasses.replace(config, resume=True), Clockwork)
    assert_same(resumed.params, whole.params)
    again, expected = evaluations(rows_of(out)), evaluations(whole.metrics)
    assert before[-1]["steps"] < 800 and max(again) == max(expected) == whole.updates
    # The evaluation that was under way is missing, and that of the checkpoint makes up for it.
    missing, more = expected.keys() - again.keys(), again.keys() - expected.keys()
    assert len(missing) <= 1 and all(update <= saved[-1] for update in missing)
    assert more <= {saved[-1]} and (not missing or saved[-1] in again)
    common = again.keys() & expected.keys()
    assert {update: expected[update] for update in common} == pytest.approx(
        {update: again[update] for update in common}
    )
    # The best ones stay, even if they are from after the checkpoint.
    seen = [*again.values(), *evaluations(before).values()]
    assert resumed.metrics[-1]["evaluation_best_return_mean"] == pytest.approx(max(seen))


def test_training_does_not_wait_where_the_lag_is_open() -> None:
    """The second evaluation is put off while the first one plays until the end of the training."""
    training = threading.Event()

    class Waits(envs.Catch):
        def __init__(self, num_envs: int, seed: int) -> None:
            super().__init__(num_envs, seed)
            self._evaluates = num_envs == EPISODES

        def step(self, action: Any) -> Timestep:
            if self._evaluates:
                assert training.wait(60)
            return super().step(action)

    class Ends:
        def write(self, row: Any) -> None:
            if row["steps"] >= 200:
                training.set()

        def close(self) -> None:
            pass

    config = dataclasses.replace(tiny_evaluated(), policy_lag="any")
    result = sebulba.train(
        config, make_env=make(Waits), topology=on(1), progress=False, sinks=[Ends()]
    )
    found = evaluations(result.metrics)
    assert len(found) == 2 and min(found) < 7 and max(found) == result.updates
    # Due after 60, 120 and 180 steps: the last one has taken the place of the second.
    skipped = [row["evaluation_skipped"] for row in result.metrics if "evaluation_skipped" in row]
    assert skipped == [1, 0]


def make(kind: type[envs.Catch]) -> Any:
    def make_env(num_envs: int, seed: int) -> Env:
        return kind(num_envs, seed)

    return make_env
