"""The first failure ends the run within seconds, as it was, and leaves no thread behind."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from whole_runs import HookedEnv, HookedEnvs, hooked_learner, on, rows_of, tensorboard_steps, tiny

import sebulba
from sebulba import CheckpointConfig, VTraceConfig, algorithms
from sebulba.learners import VTraceLearner
from sebulba.metrics.writer import MetricsWriter
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in
from sebulba.types import Env

SECONDS = 20.0
"""Less than a wait without end would take; more than a busy machine needs to write a checkpoint."""
SLOW = pytest.mark.parametrize("slow", [False, True], ids=["fast learner", "slow learner"])
LONG = 100_000


class Broken(Exception):
    """What the broken parts raise."""


class Clock:
    """Notes when something breaks; the run must have ended within ``SECONDS`` of it."""

    def __init__(self) -> None:
        self.broke_at = 0.0

    def breaks(self) -> None:
        self.broke_at = time.monotonic()
        raise Broken("broken on purpose")

    def check(self) -> None:
        assert self.broke_at, "nothing broke"
        assert time.monotonic() - self.broke_at < SECONDS


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.check()


def run(config: VTraceConfig, *, slow: bool = False, **parts: Any) -> Any:
    parts.setdefault("make_env", HookedEnvs())
    if slow:
        # From shortly before what the tests break or send on: the actors wait for it.
        sleepy = hooked_learner(lambda update: time.sleep(0.2 * (update >= 12)))
        parts.setdefault("algorithm", sleepy)
    parts.setdefault("topology", on(1))
    return sebulba.train(config, progress=False, **parts)


def notes(caught: pytest.ExceptionInfo[BaseException]) -> str:
    return "\n".join(getattr(caught.value, "__notes__", []))


def assert_raised_in(caught: pytest.ExceptionInfo[BaseException], function: str) -> None:
    assert function in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def fail_at(clock: Clock, actor: int, steps: int) -> Callable[[HookedEnv], None]:
    def fail(env: HookedEnv) -> None:
        if env.actor == actor and env.steps == steps:
            clock.breaks()

    return fail


@SLOW
def test_environment_raises_at_a_step(clock: Clock, slow: bool) -> None:
    with pytest.raises(Broken) as caught:
        made = HookedEnvs(on_step=fail_at(clock, 1, steps=43))
        run(tiny(total_steps=LONG), slow=slow, make_env=made)
    assert_raised_in(caught, "fail")
    assert "in thread actor-" in notes(caught)
    assert f"on device {jax.devices()[0]}, unroll 8" in notes(caught)
    assert all(env.closed for env in made.made)


def test_the_note_names_the_device_that_acted(clock: Clock) -> None:
    config = tiny(total_steps=LONG, actors_per_device=1)
    with pytest.raises(Broken) as caught:
        fail = fail_at(clock, 1, steps=43)
        run(config, make_env=HookedEnvs(on_step=fail), topology=on(4, 2))
    names = {f"thread actor-{n} on device {jax.devices()[n]}, unroll 8" for n in (0, 1)}
    assert sum(name in notes(caught) for name in names) == 1


def test_environment_raises_at_reset(clock: Clock) -> None:
    with pytest.raises(Broken) as caught:
        made = HookedEnvs(on_reset=fail_at(clock, 0, steps=0))
        run(tiny(total_steps=LONG), make_env=made)
    assert_raised_in(caught, "reset")
    assert "unroll 0" in notes(caught)
    assert all(env.closed for env in made.made)


def test_environment_of_one_actor_cannot_be_made(clock: Clock) -> None:
    made = HookedEnvs()

    def make_env(num_envs: int, seed: int) -> Env:
        if made.made:
            clock.breaks()
        return made(num_envs, seed)

    with pytest.raises(Broken) as caught:
        run(tiny(total_steps=LONG), make_env=make_env)
    assert_raised_in(caught, "make_env")
    assert "in thread actor-" in notes(caught)


def test_no_environment_can_be_made_at_all(clock: Clock, tmp_path: Path) -> None:
    def make_env(num_envs: int, seed: int) -> Env:
        clock.breaks()
        raise AssertionError

    with pytest.raises(Broken) as caught:
        run(tiny(out=tmp_path / "run"), make_env=make_env)
    assert_raised_in(caught, "make_env")
    assert not (tmp_path / "run").exists()


def test_agent_raises_while_it_acts(clock: Clock) -> None:
    config = tiny(total_steps=LONG)
    agent = algorithms.make_policy_agent(config, HookedEnvs()(1, 0).spec)
    calls = iter(range(10**6))

    def check(action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if next(calls) == 20:
            clock.breaks()
        return action

    class Agent:
        is_replayed_exactly = False  # Or the learner's thread might be the one that breaks.
        init, initial_state, unroll = agent.init, agent.initial_state, agent.unroll

        def act(self, params: Any, key: Any, timestep: Any, state: Any) -> Any:
            output, state = agent.act(params, key, timestep, state)
            action = jax.pure_callback(check, output.action, output.action)
            return output._replace(action=action), state

    with pytest.raises(Exception, match="broken on purpose") as caught:
        run(config, agent=Agent())
    assert "in thread actor-" in notes(caught)


def test_agent_that_cannot_be_compiled(clock: Clock) -> None:
    config = tiny()
    agent = algorithms.make_policy_agent(config, HookedEnvs()(1, 0).spec)

    class Agent:
        init, initial_state, unroll = agent.init, agent.initial_state, agent.unroll

        def act(self, params: Any, key: Any, timestep: Any, state: Any) -> Any:
            clock.breaks()

    with pytest.raises(Broken) as caught:
        run(config, agent=Agent())
    assert_raised_in(caught, "act")


@SLOW
def test_learner_raises_at_an_update(clock: Clock, slow: bool) -> None:
    def before_update(update: int) -> None:
        time.sleep(0.2 * slow)
        if update == 2:
            clock.breaks()

    with pytest.raises(Broken) as caught:
        run(tiny(total_steps=LONG), algorithm=hooked_learner(before_update))
    assert_raised_in(caught, "before_update")
    assert "in the learner, update 2" in notes(caught)


def test_metrics_cannot_be_written(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetricsWriter, "write", lambda self, *written: clock.breaks())
    with pytest.raises(Broken) as caught:
        run(tiny(total_steps=LONG, out=tmp_path / "run"))
    assert_raised_in(caught, "breaks")


@SLOW
def test_checkpoint_cannot_be_written(slow: bool, tmp_path: Path) -> None:
    out = tmp_path / "run"
    broke_at = []

    def before_update(update: int) -> None:
        if slow and broke_at:
            time.sleep(0.2)
        if update == 29:
            shutil.rmtree(checkpoints_in(out))
            checkpoints_in(out).write_text("a file, where a directory should be")
            broke_at.append(time.monotonic())

    every = CheckpointConfig(interval=30)
    config = tiny(total_steps=LONG, out=out, log_every=10**6, checkpoint=every)
    with pytest.raises(OSError) as caught:
        run(config, algorithm=hooked_learner(before_update))
    assert time.monotonic() - broke_at[0] < SECONDS
    assert str(checkpoints_in(out)) in str(caught.value)


@SLOW
def test_checkpoint_fails_in_the_background(
    clock: Clock, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = iter(range(10**6))
    monkeypatch.setattr(Checkpointer, "check", lambda self: next(checks) < 13 or clock.breaks())
    with pytest.raises(Broken):
        run(tiny(total_steps=2000, out=tmp_path, log_every=10**6), slow=slow)


@pytest.mark.usefixtures("orbax_may_fail")
def test_what_fails_while_a_checkpoint_is_written_is_noticed(tmp_path: Path) -> None:
    state = {"weights": jnp.arange(1_000_000.0)}
    checkpoints = Checkpointer(tmp_path, max_to_keep=1)
    checkpoints.save(1, state, state, {})
    checkpoints._manager.wait_until_finished()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
    try:
        deadline = time.monotonic() + SECONDS
        with pytest.raises(ValueError, match="Error writing"):
            checkpoints.save(2, state, state, {})
            while time.monotonic() < deadline:
                checkpoints.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        checkpoints.close()
    assert Checkpointer(tmp_path).turns() == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("orbax_may_fail")
@pytest.mark.parametrize("what", ["checkpoints", "rows"])
def test_a_full_disk_ends_the_run_and_leaves_its_checkpoints(what: str, tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(update: int) -> None:
        if update == 21:  # Checkpoints are written by then, and rows are longer than that.
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))

    rows = what == "rows"
    config = tiny(
        total_steps=LONG,
        out=tmp_path,
        log_every=1 if rows else 10**6,
        checkpoint=CheckpointConfig(interval=10**6 if rows else 5, max_to_keep=1),
    )
    if rows:
        run(tiny(total_steps=200, out=tmp_path))
        config = dataclasses.replace(config, resume=True)
    before = len(rows_of(tmp_path)) if rows else 0
    started = time.monotonic()
    try:
        with pytest.raises(Exception) as caught:
            run(config, algorithm=hooked_learner(fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert time.monotonic() - started < 2 * SECONDS
    assert f"writing to the run directory {tmp_path}" in notes(caught)
    with Checkpointer(checkpoints_in(tmp_path)) as saved:
        latest = saved.latest()
        assert latest is not None and saved.counts(latest)["updates"] <= 30
    more = dataclasses.replace(config, resume=True, total_steps=1000, log_every=2)
    assert run(more).updates > latest
    steps = [row["steps"] for row in rows_of(tmp_path)]
    assert steps == sorted(set(steps)) and len(steps) > before
    assert tensorboard_steps(tmp_path) == steps


def test_actors_stop_within_one_step_of_their_environment() -> None:
    late = []
    there = threading.Event()

    def slow(env: HookedEnv) -> None:
        if env.actor == 0 and env.steps == 12:
            there.wait(SECONDS)
            raise Broken
        if env.actor == 1 and env.steps >= 12:
            late.append(env.steps)
            there.set()
            time.sleep(0.5)

    with pytest.raises(Broken):
        run(tiny(total_steps=LONG, unroll_length=100), make_env=HookedEnvs(on_step=slow))
    assert len(late) <= 2


def test_the_learner_is_closed_after_the_actors_where_one_fails(clock: Clock) -> None:
    closed = []

    class Closing(VTraceLearner):
        def close(self) -> None:
            actors = [t.name for t in threading.enumerate() if t.name.startswith("actor-")]
            closed.append(actors)

    with pytest.raises(Broken):
        run(
            tiny(total_steps=LONG),
            make_env=HookedEnvs(on_step=fail_at(clock, 0, 23)),
            algorithm=dataclasses.replace(algorithms.VTRACE, make_learner=Closing),
        )
    assert closed == [[]]
