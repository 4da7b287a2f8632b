"""``sebulba train``: what it takes, what it writes, and what it says about wrong input."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, assert_refused, call, fingerprint, train
from whole_runs import rows_of

from sebulba import presets
from sebulba.cli.train import _report, parse


def test_help_has_every_option_with_the_values_of_the_preset(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert call(["train", "vtrace-cartpole", "--help"]) == 0
    output = capfd.readouterr().out
    assert output.startswith("usage: sebulba train vtrace-cartpole [-h] [OPTIONS]\n")
    for text in ("--total-steps", "500000", "CartPole-v1", "--network.core", "--env-options"):
        assert text in output
    for text in ("--lambda FLOAT", "--coordinator HOST:PORT", "--num-processes", "--process-id"):
        assert text in output
    assert "IMPALA" in output and "--preset" not in output


@pytest.mark.parametrize(("words", "code"), [(["train", "--help"], 0), (["train"], 2)])
def test_without_a_preset_it_lists_them(
    words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(words) == code
    output = capfd.readouterr().out
    assert "vtrace-atari-shallow" in output
    assert "sebulba train PRESET --help lists every option" in output


def test_the_saved_config_is_the_default_of_a_resumed_run(finished: Path) -> None:
    given = parse(presets.get("vtrace-catch"), ["--out", str(finished), "--resume", "--seed", "5"])
    assert given.config.network.hidden_sizes == (8,) and given.config.total_steps == 100
    assert given.config.seed == 5 and given.config.resume


def test_the_shell_leaves_a_home_directory_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    given = parse(presets.get("vtrace-catch"), ["--out=~/runs/x", "--process-id=1"])
    assert given.config == dataclasses.replace(
        presets.get("vtrace-catch"), out=Path("/somewhere/runs/x")
    )
    assert given.launch.process_id == 1


# Options of sebulba train vtrace-catch, and what the message must say: value, rule and remedy.
BAD_OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "unknown environment": (["--env", "Pnog-v5"], ["'Pnog-v5'", "Pong-v5"]),
    "unknown environment of ours": (["--env", "sebulba/catch"], ["sebulba/Catch"]),
    "impossible split": (
        ["--num-inference-devices", "2"],
        [
            "num_inference_devices is 2",
            "1 device:",
            "must be from 1 to 1",
            "xla_force_host_platform",
        ],
    ),
    "batch that does not divide": (
        ["--batch-size", "6"],
        ["batch_size 6", "not a multiple of envs_per_actor 4", "Make it 4"],
    ),
    "microbatches that do not divide": (
        ["--num-microbatches", "3"],
        ["3 microbatch(es)", "do not divide", "Set --envs-per-actor 6 --batch-size 6"],
    ),
    "microbatches that divide the batch but not an actor's part of it": (
        ["--envs-per-actor", "8", "--batch-size", "24", "--num-microbatches", "3"],
        ["3 microbatch(es)", "do not divide", "Set --envs-per-actor 9 --batch-size 27"],
    ),
    "no steps": (["--total-steps", "0"], ["total_steps is 0", "above 0", "--total-steps"]),
    "negative steps": (["--total-steps", "-5"], ["total_steps is -5", "above 0"]),
    "no environments": (["--envs-per-actor", "0"], ["envs_per_actor is 0", "--envs-per-actor"]),
    "no batch": (["--batch-size", "0"], ["batch_size is 0", "--batch-size"]),
    "no actors": (["--actors-per-device", "0"], ["actors_per_device is 0"]),
    "no unroll": (["--unroll-length", "-1"], ["unroll_length is -1", "--unroll-length"]),
    "no queue": (["--queue-size", "0"], ["queue_size is 0", "--queue-size"]),
    "negative threads": (["--env-threads", "-1"], ["env_threads is -1", "0 or more"]),
    "negative seed": (["--seed", "-1"], ["seed is -1", "0 to 2**32 - 1", "--seed"]),
    "huge seed": (["--seed", str(2**32)], ["seed is 4294967296"]),
    "no inference": (
        ["--num-inference-devices", "0"],
        ["num_inference_devices is 0", "a whole number above 0"],
    ),
    "discount": (["--discount", "1.5"], ["discount is 1.5", "from 0 to 1", "--discount"]),
    "lambda": (["--lambda", "-0.5"], ["lambda_ is -0.5", "--lambda"]),
    "reward clip": (["--reward-clip", "0"], ["reward_clip is 0", "above 0, or None"]),
    "entropy cost": (["--entropy-cost", "-1"], ["entropy_cost is -1", "0 or more"]),
    "learning rate": (
        ["--optimizer.learning-rate", "0"],
        ["optimizer.learning_rate is 0", "--optimizer.learning-rate"],
    ),
    "layer sizes": (["--network.hidden-sizes", "8", "0"], ["hidden_sizes is (8, 0)"]),
    "checkpoints": (["--checkpoint.interval", "0"], ["checkpoint.interval is 0"]),
    "logging": (["--log-every", "0"], ["log_every is 0"]),
    "image network": (["--network.torso", "deep"], ["sebulba/Catch", "(10, 5)", "torso mlp"]),
    "unknown option of the environment": (
        ["--env-options", "rows", "3"],
        ["option of sebulba/Catch", "'rows'"],
    ),
    "wrong type for the environment": (
        ["--env", "sebulba/Memory", "--env-options", "delay", "long"],
        ["delay", "long"],
    ),
    "wrong type for an environment of EnvPool": (
        ["--env", "CartPole-v1", "--env-options", "max_episode_steps", "long"],
        ["max_episode_steps", "long"],
    ),
    "bad value for the environment": (
        ["--env", "sebulba/Memory", "--env-options", "num_cues", "1"],
        ["num_cues is 1", "2 or more"],
    ),
    "wrong type": (["--total-steps", "many"], ["many", "--total-steps"]),
    "wrong choice": (["--policy-lag", "2"], ["2", "--policy-lag", "any"]),
    "unknown option": (["--totl-steps", "3"], ["--totl-steps", "--total-steps"]),
    "the preset again": (["--preset", "r2d2-catch"], ["Unrecognized options", "--preset"]),
    "missing value": (["--seed"], ["--seed"]),
}


@pytest.mark.parametrize(("size", "remedy"), [("4", "Make it 8"), ("12", "Make it 8")])
def test_a_batch_of_part_of_an_unroll_is_refused(
    size: str, remedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    says = [f"batch_size {size}", "not a multiple of envs_per_actor 8", remedy]
    assert_refused(["train", "ppo-cartpole", "--batch-size", size], says, capfd)


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_option(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options, says = BAD_OPTIONS[case]
    words = ["train", "vtrace-catch", "--out", "run", *TINY, *options]
    assert_refused(words, says, capfd)
    assert list(tmp_path.iterdir()) == []


BAD_COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "unknown preset": (["train", "vtrace-cach"], ["'vtrace-cach'", "did you mean vtrace-catch"]),
    "option before the preset": (
        ["train", "--seed", "3", "vtrace-catch"],
        ["--seed", "preset", "first"],
    ),
    "preset nothing like ours": (["train", "zzz"], ["'zzz'", "vtrace-catch"]),
    "resume from nothing": (
        ["train", "vtrace-catch", "--out", "nowhere", "--resume"],
        ["nowhere is not a run directory"],
    ),
    "resume without a directory": (
        ["train", "vtrace-catch", "--resume"],
        ["resume needs a run directory", "set out, on the command line with --out"],
    ),
    "directory below a file": (
        ["train", "vtrace-catch", *TINY, "--out", "/dev/null/run"],
        ["cannot write to the run directory /dev/null/run", "--out"],
    ),
    "directory where none can be made": (
        ["train", "vtrace-catch", *TINY, "--out", "/proc/run"],
        ["cannot write to the run directory /proc/run", "--out"],
    ),
}


@pytest.mark.parametrize("case", BAD_COMMANDS)
def test_bad_command(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words, says = BAD_COMMANDS[case]
    assert_refused(words, says, capfd)
    assert list(tmp_path.iterdir()) == []


# With a finished run as RUN.
BAD_WITH_RUN: dict[str, tuple[list[str], list[str]]] = {
    "used directory": (
        ["train", "vtrace-catch", "--out", "RUN", *TINY],
        ["RUN is not empty", "nothing in it is overwritten", "--out", "--resume"],
    ),
    "run directory is a file": (
        ["train", "vtrace-catch", "--out", "RUN/config.json", *TINY],
        ["cannot write to the run directory RUN/config.json", "--out"],
    ),
    "resume with another network": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume", "--network.core", "lstm"],
        ["network.core = none", "lstm", "keeps its network"],
    ),
    "resume with other layers": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume", "--network.hidden-sizes", "9"],
        ["network.hidden_sizes = (8,)", "(9,)"],
    ),
    "resume with another environment": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume", "--env", "sebulba/Memory"],
        ["env = sebulba/Catch", "sebulba/Memory", "set out to another"],
    ),
    "resume with another preset": (
        ["train", "vtrace-cartpole", "--out", "RUN", "--resume"],
        ["vtrace-catch", "vtrace-cartpole", "sebulba train vtrace-catch --out RUN --resume"],
    ),
    "resume with another optimizer": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume", "--optimizer.name", "rmsprop"],
        ["optimizer.name = adam", "rmsprop", "Leave it as it was", "set out to another"],
    ),
    "resume of a finished run": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume"],
        ["total_steps is 100", "RUN", "--total-steps"],
    ),
}


@pytest.mark.parametrize("case", BAD_WITH_RUN)
def test_nothing_in_a_run_is_lost(
    case: str, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words, says = (
        [text.replace("RUN", str(finished)) for text in texts] for texts in BAD_WITH_RUN[case]
    )
    before = fingerprint(finished)
    assert_refused(words, says, capfd)
    assert fingerprint(finished) == before


def saved_config(out: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    return config


def test_options_reach_the_resolved_config(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--env", "sebulba/Memory", "--env-options", "delay", "3", "num_cues", "4"]
    options += ["--network.core", "lstm", "--network.core-size", "8", "--policy-lag", "1"]
    assert train(out, *options, "--seed", "11") == 0
    config = saved_config(out)
    assert config["env_options"] == {"delay": 3, "num_cues": 4}
    assert config["network"]["core"] == "lstm"
    assert config["policy_lag"] == "1"
    assert config["seed"] == 11
    assert config["out"] == str(out)
    assert config["total_steps"] == 100
    assert rows_of(out)[-1]["steps"] >= 100
    # delay + 2 steps
    assert rows_of(out)[-1]["episode_length_mean"] == 5
    output = capfd.readouterr().out
    assert f"sebulba eval {out}" in output


def test_default_run_directory(tmp_path: Path) -> None:
    assert call(["train", "vtrace-catch", *TINY]) == 0
    (out,) = (tmp_path / "runs").iterdir()
    assert out.name.startswith("vtrace-catch-sebulba-Catch-s0-")
    assert saved_config(out)["out"] == str(out.relative_to(tmp_path))


def test_resume_keeps_the_options_of_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train(out, "--seed", "7") == 0
    updates = rows_of(out)[-1]["update"]
    words = ["train", "vtrace-catch", "--out", str(out), "--resume", "--total-steps", "200"]
    assert call(words) == 0
    config = saved_config(out)
    assert config["seed"] == 7 and config["network"]["hidden_sizes"] == [8]
    assert config["total_steps"] == 200
    assert rows_of(out)[-1]["update"] > updates


@pytest.mark.parametrize(("evaluated", "whose"), [(9, "final"), (6, "parameters that were")])
def test_an_evaluation_that_was_given_up_is_not_that_of_the_final_parameters(
    evaluated: int, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row: dict[str, Any] = {"update": 9, "steps": 90, "seconds": 1.0, "episode_return_mean_100": 1.0}
    row |= {"evaluation_update": evaluated, "evaluation_return_mean": 0.5}
    _report(Path("runs/x"), [row | {"evaluation_best_return_mean": 0.5}])
    assert f"Return of the {whose}" in capsys.readouterr().out
