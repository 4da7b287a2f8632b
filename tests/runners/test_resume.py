"""A run that ended, was interrupted or was killed goes on where its last checkpoint left it."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from whole_runs import HookedEnv, HookedEnvs, assert_same, on, rows_of, tiny

import sebulba
from sebulba import CheckpointConfig, ConfigError, algorithms, inference
from sebulba.learners import VTraceLearner
from sebulba.metrics.writer import MetricsWriter
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in


def train(out: Path, total_steps: int, **changes: Any) -> sebulba.TrainResult:
    parts = {
        name: changes.pop(name) for name in ("agent", "make_env", "topology") if name in changes
    }
    parts.setdefault("topology", on(1))
    config = tiny(out=out, total_steps=total_steps, **changes)
    return sebulba.train(config, progress=False, **parts)


CONSTANT = tiny().optimizer
DECAYING = dataclasses.replace(CONSTANT, decay_to_zero=True)


def checkpoint(
    out: Path, update: int, optimizer: sebulba.OptimizerConfig = CONSTANT
) -> tuple[Any, dict[str, float]]:
    """State, in NumPy, and counts of one checkpoint."""
    saved = Checkpointer(checkpoints_in(out))
    spec = HookedEnvs()(1, 0).spec
    agent = algorithms.make_policy_agent(tiny(), spec)
    rule = sebulba.learners.make_optimizer(optimizer)
    state = VTraceLearner(tiny(), agent, spec, rule, on(1)).init(jax.random.key(9))
    restored, counts, _ = saved.restore(update, state, state.params)
    saved.close()
    return jax.tree.map(np.asarray, restored), counts


@pytest.mark.slow
def test_a_larger_batch_goes_on_learning(tmp_path: Path) -> None:
    """The decay of the learning rate follows the steps, not the updates of before."""
    first = train(tmp_path, 400, optimizer=DECAYING)
    second = train(tmp_path, 800, optimizer=DECAYING, resume=True, batch_size=16)
    moved = jax.tree.map(lambda one, other: np.abs(one - other).max(), first.params, second.params)
    assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.slow
def test_a_resumed_run_may_decay_its_learning_rate(tmp_path: Path) -> None:
    train(tmp_path, 200, optimizer=CONSTANT)
    assert train(tmp_path, 400, optimizer=DECAYING, resume=True).updates > 15


def optimizer_counts(state: Any) -> list[int]:
    leaves = jax.tree_util.tree_leaves_with_path(state.opt_state)
    return [int(leaf) for path, leaf in leaves if "count" in jax.tree_util.keystr(path)]


def test_counts_and_optimizer_go_on(tmp_path: Path) -> None:
    first = train(tmp_path, 200, optimizer=DECAYING)
    rows = rows_of(tmp_path)
    second = train(tmp_path, 400, optimizer=DECAYING, resume=True)
    after = rows_of(tmp_path)
    assert after[: len(rows)] == rows
    updates = [row["update"] for row in after]
    assert updates == sorted(set(updates))
    assert [row["update"] for row in second.metrics] == updates[len(rows) :]
    for before, now in itertools.pairwise(after):
        assert now["update"] > before["update"]
        assert now["steps"] > before["steps"]
        assert now["episodes"] >= before["episodes"]
        assert now["seconds"] > before["seconds"]
    assert first.updates < second.updates == after[-1]["update"]
    # 20 steps an update, less the auto-resets: one in ten.
    assert 400 <= after[-1]["steps"] <= 420
    state, counts = checkpoint(tmp_path, second.updates, DECAYING)
    assert optimizer_counts(state) == [second.updates]
    assert counts["steps"] == after[-1]["steps"]
    assert_same(state.params, jax.tree.map(np.asarray, second.params))


def test_the_first_parameters_are_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(tmp_path, 200)
    published = []
    publish = inference.ParamsSlot.publish

    def spy(self: Any, version: int, params: Any, progress: float) -> None:
        published.append((version, jax.tree.map(np.array, params)))
        publish(self, version, params, progress)

    monkeypatch.setattr(inference.ParamsSlot, "publish", spy)
    train(tmp_path, 300, resume=True)
    assert published[0][0] == first.updates
    assert_same(published[0][1], jax.tree.map(np.asarray, first.params))


@pytest.mark.parametrize(
    "lag", ["1", *(pytest.param(lag, marks=pytest.mark.slow) for lag in ("any", "0"))]
)
def test_actors_go_on_with_new_episodes_and_new_random_numbers(tmp_path: Path, lag: str) -> None:
    made = HookedEnvs(), HookedEnvs()
    train(tmp_path, 200, make_env=made[0], policy_lag=lag)
    train(tmp_path, 400, make_env=made[1], policy_lag=lag, resume=True)
    seeds = [env.seed for run in made for env in run.made]
    assert len(seeds) == len(set(seeds)) == 4


def test_unroll_numbers_go_on(tmp_path: Path) -> None:
    first = train(tmp_path, 200, make_env=HookedEnvs())

    def fail(env: HookedEnv) -> None:
        if env.steps == 1:
            raise RuntimeError("to see the number of the unroll")

    with pytest.raises(RuntimeError) as caught:
        train(tmp_path, 400, make_env=HookedEnvs(on_step=fail), resume=True)
    # Two actors take turns.
    numbers = {f"unroll {(first.updates + n) // 2}," for n in (0, 1)}
    assert any(number in caught.value.__notes__[0] for number in numbers)


@pytest.mark.parametrize("lag", ["1", pytest.param("any", marks=pytest.mark.slow)])
def test_a_run_without_a_checkpoint_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lag: Any
) -> None:
    def fail(env: HookedEnv) -> None:
        if env.steps == 60:
            raise RuntimeError("before the first checkpoint")

    never = CheckpointConfig(interval=1000)
    with pytest.raises(RuntimeError, match="before the first"):
        train(tmp_path, 4000, make_env=HookedEnvs(on_step=fail), checkpoint=never, policy_lag=lag)
    assert not sebulba.rundir.reading.has_checkpoints(tmp_path)
    config = tiny(out=tmp_path, total_steps=400, resume=True, policy_lag=lag)
    result = sebulba.train(config, make_env=HookedEnvs(), topology=on(1))
    assert "wrote no checkpoint yet: it begins anew" in capsys.readouterr().out
    steps = [row["steps"] for row in rows_of(tmp_path)]
    assert steps == sorted(set(steps)) and steps[-1] >= 400
    assert result.updates == rows_of(tmp_path)[-1]["update"]
    assert sebulba.rundir.reading.has_checkpoints(tmp_path)


def test_a_run_that_was_killed_while_it_began_begins_anew(tmp_path: Path) -> None:
    """Its config is the first file; the folder of checkpoints comes later."""
    train(tmp_path, 200)
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    (tmp_path / "metrics.jsonl").write_text("")
    assert train(tmp_path, 200, resume=True).updates > 0
    assert rows_of(tmp_path)[-1]["steps"] >= 200


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(tmp_path: Path) -> None:
    """They may be on a disk that is not there, and its metrics would be overwritten."""
    train(tmp_path, 200)
    shutil.rmtree(checkpoints_in(tmp_path))
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        train(tmp_path, 400, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_resumes_on_other_devices(tmp_path: Path) -> None:
    first = train(tmp_path, 200)
    second = train(tmp_path, 400, resume=True, topology=on(4, 2))
    assert second.updates > first.updates


@pytest.mark.slow
def test_checkpoints_have_the_steps_of_all_their_updates(tmp_path: Path) -> None:
    every = CheckpointConfig(interval=3, max_to_keep=100)
    made = HookedEnvs()
    result = train(
        tmp_path, 400, checkpoint=every, actors_per_device=1, make_env=made, policy_lag="0"
    )
    firsts = made.made[0].firsts
    updates = sorted(int(path.name) for path in checkpoints_in(tmp_path).iterdir())
    assert updates[:2] == [3, 6] and updates[-1] == result.updates
    for update in updates:
        _, counts = checkpoint(tmp_path, update)
        assert counts["steps"] == update * 20 - sum(firsts[: update * 5])


def test_rows_have_the_steps_of_all_their_updates(tmp_path: Path) -> None:
    made = HookedEnvs()
    train(tmp_path, 400, actors_per_device=1, make_env=made, policy_lag="0")
    firsts = made.made[0].firsts
    for row in rows_of(tmp_path):
        assert row["steps"] == row["update"] * 20 - sum(firsts[: row["update"] * 5])


def test_interrupted_half_way(tmp_path: Path) -> None:
    def interrupt(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 30:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 100_000, make_env=HookedEnvs(on_step=interrupt))
    last = rows_of(tmp_path)[-1]
    state, counts = checkpoint(tmp_path, last["update"])
    assert optimizer_counts(state) == [last["update"]]
    assert counts["steps"] == last["steps"]
    more = last["steps"] + 100
    second = train(tmp_path, more, resume=True, make_env=HookedEnvs())
    updates = [row["update"] for row in rows_of(tmp_path)]
    assert updates == sorted(set(updates)) and updates[-1] == second.updates > last["update"]


@pytest.mark.slow
def test_half_written_checkpoint_is_ignored(tmp_path: Path) -> None:
    every = CheckpointConfig(interval=4, max_to_keep=100)
    train(tmp_path, 200, checkpoint=every)
    saved = sorted(int(path.name) for path in checkpoints_in(tmp_path).iterdir())
    last = checkpoints_in(tmp_path) / str(saved[-1])
    # What a kill leaves: Orbax writes under another name and renames in the end.
    half = last.with_name(f"{last.name}.orbax-checkpoint-tmp-7")
    last.rename(half)
    shutil.rmtree(half / "counts")
    published = train(tmp_path, 400, checkpoint=every, resume=True)
    updates = [row["update"] for row in rows_of(tmp_path)]
    assert updates == sorted(set(updates))
    assert saved[-2] < published.metrics[0]["update"] <= saved[-2] + 2
    assert published.updates > saved[-1]


def test_finished_run_has_nothing_to_resume(tmp_path: Path) -> None:
    train(tmp_path, 200)
    before = rows_of(tmp_path)
    with pytest.raises(ConfigError, match=r"--total-steps"):
        train(tmp_path, 200, resume=True)
    assert rows_of(tmp_path) == before


def test_another_optimizer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    train(tmp_path, 200)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    other = dataclasses.replace(tiny().optimizer, name="rmsprop")
    with pytest.raises(ConfigError, match=r"optimizer\.name = adam, not rmsprop"):
        train(tmp_path, 400, optimizer=other, resume=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_run_that_never_started_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    class Agent(sebulba.PolicyAgent):
        init = interrupt

    spec = HookedEnvs()(1, 0).spec
    policy = sebulba.distributions.make(spec.action, "tanh")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 200, agent=Agent(tiny().network, spec, policy))
    assert list(tmp_path.iterdir()) == []
    train(tmp_path, 200)


def test_one_run_at_a_time_writes_to_a_directory(tmp_path: Path) -> None:
    refused = []

    def train_too(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 1:
            for resume in (True, False):
                with pytest.raises(ConfigError) as caught:
                    train(tmp_path, 1000, resume=resume, make_env=HookedEnvs())
                refused.append(str(caught.value))

    # The first time, there is no checkpoint yet.
    train(tmp_path, 200, make_env=HookedEnvs(on_step=train_too))
    train(tmp_path, 400, resume=True, make_env=HookedEnvs(on_step=train_too))
    assert len(refused) == 4
    assert all(f"another run is writing to {tmp_path}" in message for message in refused)


@pytest.mark.slow
def test_a_run_that_failed_to_write_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = MetricsWriter.close

    def fail(self: Any) -> None:
        close(self)
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(MetricsWriter, "close", fail)
        with pytest.raises(OSError, match="disk full"):
            train(tmp_path, 200)
    assert train(tmp_path, 400, resume=True).updates > 0
