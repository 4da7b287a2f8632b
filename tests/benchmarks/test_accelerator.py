"""accelerator.py, whose one chance is an hour on a borrowed machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmark_parts import Load
from paths import ROOT

from sebulba import presets
from sebulba.cli.train import parse


class Runner:
    """In place of ``Session.run``: remembers the commands, of which some fail."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.commands: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def run(
        self, session: Any, stage: str, arguments: Sequence[str], seconds: float | None = None
    ) -> bool:
        session.log(stage).write_text(f"log of {stage}\n")
        self.commands.append(" ".join(arguments))
        self.before()
        return not any(word in self.commands[-1] for word in self.failing)


@pytest.fixture
def accelerate(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, list[str]]]:
    """Runs some stages; returns the exit status and the commands."""
    accelerator = load("accelerator")

    def run(stages: Sequence[str], runner: Runner, **changes: Any) -> tuple[int, list[str]]:
        monkeypatch.setattr(
            accelerator.Session, "run", lambda session, *words: runner.run(session, *words)
        )
        options = accelerator.Options(out=tmp_path, stages=tuple(stages), **changes)
        return accelerator.main(options), runner.commands[1:]

    return run


def test_what_tune_had_found_is_measured_where_it_failed(
    accelerate: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "vtrace-atari.tuned").write_text("--env-threads 3\n")
    status, (tune, throughput, sweep) = accelerate(
        ["atari", "microbatches"], Runner("sebulba tune")
    )
    assert status == 1
    assert tune.startswith("-m sebulba tune vtrace-atari --seconds 3.0 --write vtrace-atari.tuned")
    assert throughput.startswith("benchmarks/throughput.py vtrace-atari ")
    assert throughput.endswith("--out throughput_vtrace_atari -- --env-threads 3")
    assert sweep.startswith("benchmarks/sweep.py vtrace-atari num-microbatches")


def test_a_game_is_trained_with_what_was_found_for_its_preset(
    accelerate: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "ppo-atari.tuned").write_text("--env-threads 3\n")
    status, (train, *_) = accelerate(["ppo-breakout"], Runner())
    assert status == 0
    assert train.startswith("-m sebulba train ppo-atari --env Breakout-v5 --env-threads 3 ")


@pytest.mark.parametrize("game", ["pong", "breakout"])
@pytest.mark.parametrize("algorithm", ["vtrace", "ppo", "pqn"])
def test_the_options_of_a_game_are_a_config(
    algorithm: str, game: str, accelerate: Callable[..., tuple[int, list[str]]]
) -> None:
    stage = game if algorithm == "vtrace" else f"{algorithm}-{game}"
    _, (train, _) = accelerate([stage], Runner(), train=("--total-steps=1000",))
    _, _, _, preset, *words = train.split()
    config = parse(presets.get(preset), words).config
    config.validate()
    assert (type(config).__name__.lower(), config.total_steps) == (f"{algorithm}config", 1000)
    environments = config.actors_per_device * config.envs_per_actor
    if stage == game:
        assert environments == 32
    else:  # Those of ppo-atari and pqn-atari keep few cores at work.
        assert environments == config.batch_size >= 128


def test_a_training_that_failed_gets_its_curve(
    accelerate: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    status, (train, curve) = accelerate(["pong"], Runner("sebulba train"))
    assert status == 1 and "--out pong/run" in train
    assert curve.startswith("benchmarks/learning_curve.py pong/run --out pong --seconds ")


@pytest.mark.parametrize("drawn", [True, False])
def test_checkpoints_stay_until_the_curve_is_drawn(
    drawn: bool, accelerate: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "pong/run/checkpoints/2000").mkdir(parents=True)
    status, _ = accelerate(["pong"], Runner(*([] if drawn else ["learning_curve"])))
    assert status == (0 if drawn else 1)
    assert (tmp_path / "pong/run").exists()
    assert (tmp_path / "pong/run/checkpoints").exists() is not drawn


def test_one_stage_does_not_end_the_others(
    accelerate: Callable[..., tuple[int, list[str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    runner = Runner()

    def full() -> None:
        if "tune vtrace-atari " in runner.commands[-1]:
            raise OSError("no space left")

    runner.before = full
    status, commands = accelerate(["atari", "r2d2"], runner)
    assert status == 1 and len(commands) == 3
    output = capfd.readouterr().out
    assert "FAILED with OSError('no space left')  atari" in output and "passed   r2d2" in output


def test_no_stage_starts_without_an_accelerator_or_time(
    accelerate: Callable[..., tuple[int, list[str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert accelerate(["atari"], Runner("preflight")) == (1, [])
    assert "log of preflight" in capfd.readouterr().out
    assert accelerate(["atari", "pong"], Runner(), limit=0.0) == (1, [])
    assert capfd.readouterr().out.count("no time") == 2
    runner = Runner()
    accelerate([], runner, allow_cpu=True)
    assert runner.commands == ["benchmarks/preflight.py --allow-cpu"]


def test_the_preflight_refuses_a_cpu(load: Load, capfd: pytest.CaptureFixture[str]) -> None:
    preflight = load("preflight")
    assert "default backend is cpu" in preflight.main(preflight.Options())
    assert preflight.main(preflight.Options(allow_cpu=True)) is None
    assert "CpuDevice" in capfd.readouterr().out


SLEEPS = """
import pathlib, sys, time
try:
    pathlib.Path("ready").touch()
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_command_is_logged_and_interrupted(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    accelerator = load("accelerator")
    session = accelerator.Session(accelerator.Options(out=tmp_path), tmp_path / "scratch")
    shows = "import os; print(os.environ['PYTHONPATH'], os.environ['JAX_COMPILATION_CACHE_DIR'])"
    assert session.run("stage", ["-c", shows])
    assert not session.run("stage", ["-c", f"raise OSError({str(tmp_path / 'file')!r})"])

    class OverOnceItSleeps(subprocess.Popen[bytes]):
        """Its 6 seconds are over once there is something to interrupt, however long that takes."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout != 6.0:
                return super().wait(timeout)
            while not (tmp_path / "ready").exists():
                assert self.poll() is None
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", OverOnceItSleeps)
        assert session.run("stage", ["-c", SLEEPS], 6.0)
    session._end = 0.0
    assert not session.run("stage", ["-c", "print('never')"])
    log = session.log("stage").read_text()
    assert f"{ROOT}{os.pathsep}elsewhere cache" in log
    assert "OSError: file\n# ended with 1" in log and "ended with 130, of at most 6 s" in log
    assert log.endswith("# not started: the limit is reached\n")


def test_learning_takes_as_many_actors_as_the_preset(load: Load) -> None:
    accelerator = load("accelerator")
    trained = [accelerator.PRESETS[stage] for stage, _ in accelerator.TRAININGS.values()]
    (actors,) = {presets.get(preset).actors_per_device for preset in trained}
    assert actors == accelerator.ACTORS

    def left_of(actors: int) -> str:
        tuned = f"--envs-per-actor 8 --actors-per-device {actors} --env-threads 4"
        return " ".join(accelerator.without_actors(tuned.split()))

    assert left_of(actors) == "--envs-per-actor 8 --env-threads 4"
    assert left_of(16) == "--envs-per-actor 8"
    assert accelerator.without_actors([]) == []


def test_a_second_call_goes_on_or_trains_anew(load: Load, tmp_path: Path) -> None:
    accelerator = load("accelerator")
    session = accelerator.Session(accelerator.Options(out=tmp_path), tmp_path)
    assert accelerator.run_directory("pong", session) == ("pong/run", [])
    (tmp_path / "pong/run/checkpoints/20").mkdir(parents=True)
    assert accelerator.run_directory("pong", session) == ("pong/run", ["--resume"])
    (tmp_path / "pong/run/checkpoints/20").rmdir()
    assert accelerator.run_directory("pong", session) == ("pong/run-2", [])
