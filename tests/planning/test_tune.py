"""Finding the fastest setting."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from sebulba import Config, ConfigError, algorithms, presets
from sebulba.cli.main import main
from sebulba.planning import tune
from sebulba.runners import environments

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
            config.num_microbatches,
        )
        return sum(a == b for a, b in zip(wanted, given, strict=True))

    trials = searched(measure, 16, monkeypatch)
    best = max(trials, key=lambda trial: trial.steps_per_second)
    assert best.steps_per_second == 4
    assert best.options() == (
        "--envs-per-actor 4 --actors-per-device 8 --env-threads 1 --num-microbatches 4"
    )
    settings = [tuple(trial.setting.values()) for trial in trials]
    assert settings[0] == (8, CONFIG.actors_per_device, CONFIG.env_threads, None)
    assert len(set(settings)) == len(settings)


def test_leaves_out_what_the_devices_do_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(config: Config) -> float:
        algorithms.of(config).unrolls_per_turn(config)
        if config.envs_per_actor == 4:
            raise ConfigError("4 environments on 8 learners")
        return 1.0

    trials = searched(measure, 2, monkeypatch)
    assert {trial.setting["envs_per_actor"] for trial in trials} == {8}
    assert max(trial.setting["actors_per_device"] for trial in trials) == 4


@pytest.mark.slow
def test_a_trial_that_fails_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(config: Config) -> float:
        if config.actors_per_device != 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nwhile allocating")
        return 1.0

    trials = searched(measure, 2, monkeypatch)
    assert trials[0].error == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert trials[0].steps_per_second == 0
    best = max(trials, key=lambda trial: trial.steps_per_second)
    assert best.error is None and best.setting["actors_per_device"] == 1


def tuned(trials: list[tune.Trial], file: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command had written after each trial."""
    written = []

    def search(*_: object) -> Iterator[tune.Trial]:
        for trial in trials:
            yield trial
            written.append(file.read_text() if file.exists() else "")

    monkeypatch.setattr(tune, "search", search)
    main(["tune", "vtrace-catch", "--write", str(file)])
    return written


def test_the_best_so_far_is_written_after_every_trial(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [
        tune.Trial({"env_threads": 0}, 0.0, "XlaRuntimeError: no memory"),
        tune.Trial({"env_threads": 1}, 10.0),
        tune.Trial({"env_threads": 2}, 0.0, "XlaRuntimeError: no memory"),
        tune.Trial({"env_threads": 3}, 20.0),
    ]
    written = tuned(trials, tmp_path / "options", monkeypatch)
    assert written == ["", *["--env-threads 1\n"] * 2, "--env-threads 3\n"]
    output = capfd.readouterr().out
    assert output.count("XlaRuntimeError: no memory") == 2
    assert "best: --env-threads 3. Train" in output


def test_where_no_trial_works_nothing_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        tuned([tune.Trial({}, 0.0, "RuntimeError: no")], tmp_path / "options", monkeypatch)
    assert "the first ended with RuntimeError: no. See all" in capfd.readouterr().err
    assert not (tmp_path / "options").exists()


@pytest.mark.parametrize("turns", [4, 37])
def test_what_a_run_takes_to_end_is_no_training(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of a second each, a quarter of whose steps are auto-reset ones, which do not count."""

    def train(config: Config, progress: bool) -> types.SimpleNamespace:
        per_turn = config.unroll_length * config.batch_size * 3 // 4
        ended = -(-config.total_steps // per_turn)
        assert ended < config.checkpoint.interval
        rows = [
            {"steps": turn * per_turn, "seconds": 100.0 + turn}
            for turn in range(config.log_every, ended + 1, config.log_every)
        ]
        last = {"steps": ended * per_turn, "seconds": 500.0 + ended}
        return types.SimpleNamespace(metrics=[*rows, last])

    monkeypatch.setattr(tune, "train", train)
    per_second = CONFIG.unroll_length * CONFIG.batch_size * 3 // 4
    assert tune._rate(CONFIG, turns) == per_second


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


@pytest.fixture
def no_compilation_cache() -> Iterator[None]:
    """As where ``JAX_COMPILATION_CACHE_DIR`` is not set."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def test_compilations_are_kept_while_measuring_and_no_longer(no_compilation_cache: None) -> None:
    jax.jit(lambda x: x + 2)(1.0)
    with tune.TrainingRate(1.0):
        folder = Path(jax.config.values["jax_compilation_cache_dir"])
        jax.jit(lambda x: x + 3)(1.0)
        assert list(folder.iterdir())
    assert not folder.exists()
    jax.jit(lambda x: x + 4)(1.0)  # To write to that folder would be warned about: an error here.


@pytest.mark.slow
def test_the_command_writes_options_that_train_takes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"envs_per_actor": [4], "num_microbatches": [2]}
    monkeypatch.setattr(tune, "_candidates", lambda config, name, setting: others.get(name, []))
    monkeypatch.setattr(jax, "devices", lambda: DEVICES[:1])
    file = tmp_path / "options"
    words = ["--batch-size", "8", "--envs-per-actor", "8", "--network.hidden-sizes", "8"]
    words.append("--optimizer.no-decay-to-zero")  # Another number of steps is the same program.
    main(["tune", "vtrace-catch", "--seconds", "0.1", "--write", str(file), *words])
    output = capfd.readouterr().out
    assert output.count("steps/s") >= 3
    assert f"sebulba train vtrace-catch {' '.join(words)} $(cat {file})" in output
    run = ["--total-steps", "400", "--out", str(tmp_path / "run")]
    main(["train", "vtrace-catch", *run, *words, *file.read_text().split()])


def test_the_cores_are_shared_among_the_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(environments, "cpu_cores", lambda: 7)
    monkeypatch.setattr(
        environments.envs, "make", lambda *_, num_threads, **__: given.append(num_threads)
    )
    for threads, actors in ((0, 2), (0, 9), (5, 2)):
        config = dataclasses.replace(CONFIG, env_threads=threads)
        environments.default_make_env(config, actors)(1, 0)
    assert given == [3, 1, 5]
