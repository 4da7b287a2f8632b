"""The benchmarks whose one chance is an hour on a borrowed machine."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from paths import ROOT

import sebulba
from sebulba import presets
from sebulba.cli.train import parse
from sebulba.config import to_json
from sebulba.runners import environments
from sebulba.validation import ConfigError

BENCHMARKS = ROOT / "benchmarks"
DEVICES = jax.devices()
Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports a script of benchmarks/."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


# throughput.py


@pytest.mark.slow
def test_throughput_writes_a_report_and_a_table(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda: DEVICES[:1])
    monkeypatch.setattr(load("throughput_parts"), "TRIAL_SECONDS", 0.1)
    tiny = ["--envs-per-actor", "4", "--batch-size", "4", "--unroll-length", "5"]
    tiny += ["--network.hidden-sizes", "8", "--optimizer.no-decay-to-zero"]
    out = ["--repeats", "1", "--seconds", "0.02", "--out", str(tmp_path / "report")]
    load("throughput").main(["vtrace-catch", *out, "--", *tiny])
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["repeats"][0]) == set("abcdef")
    assert report["summary"]["efficiency"]["median"] > 0
    table = (tmp_path / "report.md").read_text()
    assert "| f | training | as in training |" in table
    assert "Efficiency, f / bound: **" in table


def report(platform: str) -> dict[str, Any]:
    """Acting is fastest with more environments than the preset has."""
    acting = {"1 x 4": (4, 10.0), "2 x 4": (4, 15.0), "1 x 8": (8, 40.0)}
    parts = {
        "a": {"1": {"steps_per_second": 20.0}, "2": {"steps_per_second": 60.0}},
        "b": {
            name: {"steps_per_second": rate, "num_envs": size}
            for name, (size, rate) in acting.items()
        },
        "c": {"as in training": {"steps_per_second": 30.0}},
        "d": {"fast": {"steps_per_second": 9e9}, "slow": {"steps_per_second": 9e6}},
    }
    return {
        "machine": {"platform": platform},
        "config": {"envs_per_actor": 4},
        "repeats": [parts],
    }


def test_the_bound_is_the_slowest_work_of_an_accelerator(load: Load) -> None:
    throughput_report = load("throughput_report")
    assert throughput_report._bound(report("gpu"), 60.0, 40.0, 30.0) == 30.0
    assert throughput_report._bound(report("cpu"), 60.0, 30.0, 20.0) == pytest.approx(10.0)
    summary = throughput_report.summarize(report("gpu"))
    assert summary["bound"]["median"] == 30.0
    assert "min(a, b, c)" in throughput_report._bound_in_words(report("gpu"))


@pytest.mark.parametrize(("platform", "acting"), [("gpu", "1 x 8"), ("cpu", "2 x 4")])
def test_the_settings_that_stand_for_a_part(platform: str, acting: str, load: Load) -> None:
    chosen = {name: load("throughput_report")._setting(report(platform), name) for name in "abcd"}
    assert chosen == {"a": "2", "b": acting, "c": "as in training", "d": "slow"}


def test_pools_are_as_in_training_and_not_too_many(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = load("throughput_parts")
    for module in (parts, environments):
        monkeypatch.setattr(module, "cpu_cores", lambda: 16)

    def settings(size: int, lanes: int, env: str = "Pong-v5") -> list[tuple[int, int, int]]:
        config = dataclasses.replace(presets.get("vtrace-catch"), env=env, envs_per_actor=size)
        found: list[tuple[int, int, int]] = parts.pool_settings(config, lanes)
        return found

    assert len(settings(16, 2)) == 6 and settings(16, 2)[0] == (2, 16, 8)
    assert settings(32, 16) == [(16, 32, 1), (1, 512, 16), (2, 512, 16)]
    assert settings(4096, 2) == [(2, 4096, 8)]
    assert settings(16, 1, "sebulba/Catch") == [(1, 16, 0), (1, 64, 0), (1, 256, 0)]


# accelerator.py


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
    assert f"{BENCHMARKS.parent}{os.pathsep}elsewhere cache" in log
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


# learning_curve.py


def test_checkpoints_are_spread_from_the_last(load: Load) -> None:
    spread = load("learning_curve").spread
    assert spread([1, 2, 3], 16) == [3, 1, 2]
    assert spread(range(101), 5) == [100, 0, 50, 75, 25]
    assert spread([7], 1) == [7] and spread(range(9), 1) == [8]


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_what_was_evaluated_stays(
    end: type[BaseException], load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = load("learning_curve")

    def evaluations(options: Any, turns: Any) -> Any:
        yield {"frames": 20, "mean": 2.0, "standard_error": 0.1}
        yield {"frames": 10, "mean": 1.0, "standard_error": 0.1}
        raise end

    monkeypatch.setattr(curve, "chosen", lambda options: [1, 2, 3])
    monkeypatch.setattr(curve, "evaluations", evaluations)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    (run / "config.json").write_text(to_json(presets.get("vtrace-catch"), "vtrace"))
    (run / "metrics.jsonl").write_text('{"frames": 30, "episode_return_mean_100": 1.0}\n')
    options = curve.Options(run=run, out=out)
    if end is KeyboardInterrupt:
        assert curve.main(options) == 1  # One is missing: its checkpoint must stay.
    else:
        with pytest.raises(end):
            curve.main(options)
    rows = json.loads((out / "evaluations.json").read_text())
    assert [row["frames"] for row in rows] == [10, 20]
    assert (out / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()


def test_a_second_call_goes_on_or_trains_anew(load: Load, tmp_path: Path) -> None:
    accelerator = load("accelerator")
    session = accelerator.Session(accelerator.Options(out=tmp_path), tmp_path)
    assert accelerator.run_directory("pong", session) == ("pong/run", [])
    (tmp_path / "pong/run/checkpoints/20").mkdir(parents=True)
    assert accelerator.run_directory("pong", session) == ("pong/run", ["--resume"])
    (tmp_path / "pong/run/checkpoints/20").rmdir()
    assert accelerator.run_directory("pong", session) == ("pong/run-2", [])


# scaling.py


def test_layouts_with_as_many_learners_are_points_of_their_own(load: Load) -> None:
    scaling = load("scaling")

    def row(layout: str, learners: int, rate: float, **changes: Any) -> dict[str, Any]:
        where = {"preset": "vtrace-catch", "processes": 1, "slice": "v5e-4", **changes}
        return {"layout": layout, "learners": learners, "frames_per_second": rate, **where}

    rows = [row("a0-l1", 1, 30.0), row("a0-l0", 1, 20.0), row("a0-l1", 1, 10.0)]
    rows += [row("a0-l0", 2, 25.0, processes=2), row("a0-l0", 1, 5.0, preset="r2d2-catch")]
    assert [point[0::2] for point in map(tuple, scaling._points(rows))] == [
        ("r2d2-catch", 1, 5.0, 5.0),
        ("vtrace-catch", 1, 20.0, 20.0),
        ("vtrace-catch", 1, 20.0, 30.0),
        ("vtrace-catch", 2, 25.0, 25.0),
    ]
    assert [point.layout for point in scaling._points(rows)] == ["a0-l0", "a0-l0", "a0-l1", "a0-l0"]


def test_every_layout_that_the_preset_allows(load: Load) -> None:
    scaling = load("scaling")
    found = scaling.layouts(presets.get("vtrace-catch"))  # Of 32 environments, on 8 devices.
    assert [len(topology.learners) for topology in found] == [8, 1, 2, 4]
    assert found[0].inference == found[0].learners
    odd = dataclasses.replace(presets.get("vtrace-catch"), envs_per_actor=7, batch_size=7)
    assert [len(topology.learners) for topology in scaling.layouts(odd)] == [1, 7]


@pytest.mark.parametrize("devices", [1, 3])
def test_what_scaling_trains_is_a_config(
    devices: int, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = load("scaling")

    def run(command: list[str], **_: Any) -> None:
        _, preset, *words = command[command.index("--") + 1 :]
        parse(presets.get(preset), words).config.validate()
        raise InterruptedError  # Nothing is trained.

    monkeypatch.setattr(scaling.subprocess, "run", run)
    with pytest.raises(InterruptedError):
        scaling.measure(scaling.Options(), processes=2, devices=devices)


def test_rows_of_scaling_are_written_at_once(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = load("scaling")

    def measure(options: Any, processes: int, devices: int) -> dict[str, Any]:
        if devices == 2:
            raise OSError
        return {"devices": devices}

    monkeypatch.setattr(scaling, "measure", measure)
    with pytest.raises(OSError):
        scaling.main(scaling.Options(devices=(1, 2), out=tmp_path / "scaling"))
    assert json.loads((tmp_path / "scaling.json").read_text()) == [{"devices": 1}]
    with pytest.raises(ConfigError, match="updates is 3: it must be at least 4"):
        scaling.main(scaling.Options(updates=3, out=tmp_path / "none"))


def test_the_table_of_environments_is_what_was_found() -> None:
    table = (ROOT / "benchmarks" / "results" / "environments.md").read_text()
    assert (
        len(table.splitlines()) == 19 and table in (ROOT / "docs" / "environments.md").read_text()
    )


# seeds.py


@pytest.mark.slow
def test_seeds_takes_runs_that_were_trained_before(load: Load, tmp_path: Path) -> None:
    config = dataclasses.replace(presets.get("vtrace-catch"), total_steps=20_000, log_every=5)
    runs = [tmp_path / f"run{seed}" for seed in (4, 7)]
    for seed, run in zip((4, 7), runs, strict=True):
        sebulba.train(dataclasses.replace(config, seed=seed, out=run), progress=False)
    seeds = load("seeds")
    options = seeds.Options("vtrace-catch", runs=tuple(runs), reach=(-1.0, 2.0), at_least=2.0)
    assert seeds.main(dataclasses.replace(options, out=tmp_path / "both"), []) == 1  # Below 2.
    result = json.loads((tmp_path / "both.json").read_text())
    assert result["command"] == "sebulba train vtrace-catch" and (tmp_path / "both.png").is_file()
    assert [of_seed["seed"] for of_seed in result["seeds"]] == [4, 7]
    for of_seed, run in zip(result["seeds"], runs, strict=True):
        rows = sebulba.read_metrics(run)
        steps, seconds = of_seed["reached"]["-1.0"]
        assert of_seed["reached"]["2.0"] is None and 0 < steps <= of_seed["steps"]
        assert seconds <= of_seed["seconds"] == round(rows[-1]["seconds"], 1)
        returns = [row["episode_return_mean_100"] for row in rows if row["episodes"] >= 100]
        assert of_seed["most"] == max(returns) and -1 <= of_seed["return_mean"] <= 1
    with pytest.raises(ConfigError, match="run4 is a run of vtrace-catch: name that preset"):
        seeds.main(dataclasses.replace(options, preset="ppo-pong", out=tmp_path / "other"), [])
