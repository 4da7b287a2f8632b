"""Finding the fastest setting."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import pytest

from sebulba import presets, runner, tune
from sebulba.cli import main
from sebulba.config import Config, ConfigError

DEVICES = jax.devices()
CONFIG = dataclasses.replace(presets.get("vtrace-catch"), envs_per_actor=8, batch_size=8)


def searched(
    measure: tune.Measure, cores: int, monkeypatch: pytest.MonkeyPatch, devices: int = 1
) -> list[tune.Trial]:
    monkeypatch.setattr(tune, "cpu_cores", lambda: cores)
    monkeypatch.setattr(jax, "devices", lambda: DEVICES[:devices])
    return list(tune.search(CONFIG, measure))


def test_finds_the_best_of_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(config: Config) -> float:
        assert config.batch_size == 8 and config.unroll_length == CONFIG.unroll_length
        wanted = (4, 8, 1, 4)
        given = (
            config.envs_per_actor,
            config.actors_per_device,
            config.env_threads,
            config.gradient_accumulation,
        )
        return sum(a == b for a, b in zip(wanted, given, strict=True))

    trials = searched(measure, 16, monkeypatch)
    best = max(trials, key=lambda trial: trial.steps_per_second)
    assert best.steps_per_second == 4
    assert best.options() == (
        "--envs-per-actor 4 --actors-per-device 8 --env-threads 1 --gradient-accumulation 4"
    )
    settings = [tuple(trial.setting.values()) for trial in trials]
    assert settings[0] == (8, CONFIG.actors_per_device, CONFIG.env_threads, None)
    assert len(set(settings)) == len(settings)


def test_leaves_out_what_the_devices_do_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(config: Config) -> float:
        if config.envs_per_actor == 4:
            raise ConfigError("4 environments on 8 learners")
        return 1.0

    trials = searched(measure, 2, monkeypatch)
    assert {trial.setting["envs_per_actor"] for trial in trials} == {8}
    assert max(trial.setting["actors_per_device"] for trial in trials) == 4


def test_the_actors_of_all_inference_devices_share_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tried(name: str, devices: int) -> set[int]:
        trials = searched(lambda config: 1.0, 8, monkeypatch, devices)
        return {trial.setting[name] for trial in trials}

    # Four of eight devices act, so that four learners divide eight environments.
    assert max(tried("actors_per_device", 8)) == 4
    assert max(tried("actors_per_device", 1)) == 16
    # What 0 gives, 1 and 4, is not tried again.
    assert tried("env_threads", 8) == {0, 8}
    assert tried("env_threads", 1) == {0, 1, 8}


def test_actors_of_all_devices_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [tune._turns_at_start(CONFIG)]
    monkeypatch.setattr(jax, "devices", lambda: DEVICES[:1])
    turns.append(tune._turns_at_start(CONFIG))
    assert turns == [16, 4]


@pytest.mark.parametrize(("turns_per_second", "expected"), [(0.3, [4, 4]), (100.0, [4, 600, 600])])
def test_a_trial_takes_its_seconds_but_some_turns_at_least(
    turns_per_second: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns_tried = []

    def rate(config: Config, turns: int) -> float:
        turns_tried.append(turns)
        return turns_per_second * config.unroll_length * config.batch_size

    monkeypatch.setattr(tune, "_rate", rate)
    with tune.TrainingRate(6.0) as measure:
        assert measure(CONFIG) == measure(CONFIG) == rate(CONFIG, 0)
    assert turns_tried[:-1] == expected


def test_the_command_writes_options_that_train_takes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options"
    words = ["--batch-size", "8", "--envs-per-actor", "8", "--network.hidden-sizes", "8"]
    main(["tune", "vtrace-catch", "--seconds", "0.1", "--write", str(file), *words])
    output = capfd.readouterr().out
    assert output.count("steps/s") >= 4
    assert f"sebulba train vtrace-catch {' '.join(words)} $(cat {file})" in output
    run = ["--total-steps", "400", "--out", str(tmp_path / "run")]
    main(["train", "vtrace-catch", *run, *words, *file.read_text().split()])


def test_the_cores_are_shared_among_the_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(runner, "cpu_cores", lambda: 7)
    monkeypatch.setattr(
        runner.envs, "make", lambda *_, num_threads, **__: given.append(num_threads)
    )
    for threads, actors in ((0, 2), (0, 9), (5, 2)):
        config = dataclasses.replace(CONFIG, env_threads=threads)
        runner.default_make_env(config, actors)(1, 0)
    assert given == [3, 1, 5]
