"""Every file in examples/ runs, with tiny settings."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import pytest
from paths import ROOT

from sebulba import VTraceConfig, presets

EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples split all the devices there are; the eight of the tests would divide nothing."""
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])


def test_there_is_a_test_for_every_example() -> None:
    here = {"atari", "cartpole", "memory", "optuna_search", "own_parts", "sinks"}
    in_test_own_code = {"own_algorithm", "own_environment", "own_ppo", "own_recurrent_agent"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == here | in_test_own_code
    # And a row in the table, as every notebook has.
    table = (EXAMPLES / "README.md").read_text()
    for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("notebooks/*.ipynb")):
        assert f"]({path.relative_to(EXAMPLES)}) |" in table, path


@pytest.mark.slow
def test_cartpole() -> None:
    assert load("cartpole").main(total_steps=1500) >= 8


@pytest.mark.slow
def test_memory_without_a_core_is_no_better_than_chance() -> None:
    mean = load("memory").main(core="none", total_steps=6_000)
    assert mean is not None and abs(mean) < 0.5


@pytest.mark.slow
def test_own_parts_learn_the_better_arm() -> None:
    mean = load("own_parts").main(total_steps=40_000)
    assert mean is not None and mean > 0.8


@pytest.mark.slow
def test_a_search_stops_a_trial_that_optuna_prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Optuna's place, a study of one trial, which is pruned at its second row."""

    class Pruned(Exception):
        pass

    def optimize(objective: Callable[[Any], float], num_trials: int) -> None:
        with pytest.raises(Pruned):
            objective(trial)

    trial, optuna = mock.MagicMock(), mock.MagicMock(TrialPruned=Pruned)
    trial.suggest_float.side_effect = lambda name, low, high, log: low
    trial.should_prune.side_effect = [False, True]
    optuna.create_study.return_value.optimize.side_effect = optimize
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    load("optuna_search").main(num_trials=1)
    returns, rows = zip(*(call.args for call in trial.report.call_args_list), strict=True)
    assert rows == (1, 2) and all(-1 <= mean <= 1 for mean in returns)


def test_a_search_without_optuna_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit, match=r"pip install optuna$"):
        load("optuna_search")


def test_rows_go_to_a_csv_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load("sinks").main(total_steps=1500)
    columns, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert "episode_return_mean" in columns and rows


@pytest.mark.parametrize("to", ["wandb", "mlflow", "aim"])
def test_rows_go_to_a_service(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its place, an object that remembers every call."""
    service = mock.MagicMock()
    monkeypatch.setitem(sys.modules, to, service)
    load("sinks").main(to, total_steps=1500)
    calls = [str(call) for call in service.mock_calls]
    assert any("sebulba/Catch" in call for call in calls), "the config"
    assert any("episode_return_mean" in call and "step=1" in call for call in calls), "a row"
    assert calls[-1].split(".")[-1] in ("finish()", "end_run()", "close()")


@pytest.mark.slow
def test_atari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, text = presets.PRESETS["vtrace-atari-shallow"]
    assert isinstance(preset, VTraceConfig)
    small = dataclasses.replace(
        preset,
        actors_per_device=1,
        envs_per_actor=2,
        batch_size=2,
        unroll_length=4,
        env_options={"max_episode_steps": 20},
        network=dataclasses.replace(preset.network, torso="small", hidden_sizes=(8,)),
        # One that falls with total_steps would have the resumed update compiled anew.
        optimizer=dataclasses.replace(preset.optimizer, decay_to_zero=False),
    )
    monkeypatch.setitem(presets.PRESETS, "vtrace-atari-shallow", (small, text))
    main = load("atari").main
    main(tmp_path / "pong", total_steps=40, episodes=2)
    mean = main(tmp_path / "pong", total_steps=80, episodes=2, resume=True)
    assert mean <= 0
