"""The command line: what it takes, what it writes, and what it says about wrong input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from whole_runs import rows_of

from sebulba.cli import main as cli

TINY = (
    *("--total-steps", "100", "--envs-per-actor", "4", "--batch-size", "4"),
    *("--unroll-length", "5", "--network.hidden-sizes", "8"),
)


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on most machines; and away from the repository, for the default run directory."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.chdir(tmp_path)


def call(words: Sequence[str]) -> int:
    """The exit code of ``sebulba WORDS``."""
    try:
        cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def train(out: Path, *options: str, preset: str = "vtrace-catch") -> int:
    return call(["train", preset, "--out", str(out), *TINY, *options])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny config, which no test may change."""
    out = tmp_path_factory.mktemp("finished") / "run"
    before = jax.devices
    devices = jax.devices()[:1]
    jax.devices = lambda: devices
    try:
        assert train(out) == 0
    finally:
        jax.devices = before
    return out


def fingerprint(directory: Path) -> dict[str, str]:
    """Every path below ``directory``, with the hash of each file."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "directory"
        for path in sorted(directory.rglob("*"))
    }


def assert_refused(
    words: Sequence[str], says: Sequence[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and one message on standard error that holds all of ``says``."""
    assert call(words) == 2
    output, message = capfd.readouterr()
    assert "Traceback" not in output + message
    assert output == ""
    flat = " ".join(message.replace("│", " ").split())
    for text in says:
        assert text in flat, f"{text!r} is not in: {flat}"


# Options of sebulba train vtrace-catch, and what the message must say: value, rule and remedy.
BAD_OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "unknown environment": (["--env", "Pnog-v5"], ["'Pnog-v5'", "Pong-v5"]),
    "unknown environment of ours": (["--env", "sebulba/catch"], ["sebulba/Catch"]),
    "impossible split": (
        ["--num-inference", "2"],
        ["num_inference is 2", "1 device:", "must be from 1 to 1", "xla_force_host_platform"],
    ),
    "batch that does not divide": (
        ["--batch-size", "6"],
        ["batch_size 6", "not a multiple of envs_per_actor 4", "Make it 4"],
    ),
    "accumulation that does not divide": (
        ["--num-microbatches", "3"],
        ["num_microbatches 3", "does not divide", "one of its divisors"],
    ),
    "accumulation that divides the batch but not an actor's part of it": (
        ["--envs-per-actor", "8", "--batch-size", "24", "--num-microbatches", "3"],
        ["num_microbatches 3", "8 environments of an actor", "one of its divisors"],
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
        ["--num-inference", "0"],
        ["num_inference is 0", "a whole number above 0"],
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
    "wrong choice": (["--policy-lag", "2"], ["2", "--policy-lag", "none"]),
    "unknown option": (["--totl-steps", "3"], ["--totl-steps", "--total-steps"]),
    "missing value": (["--seed"], ["--seed"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_option(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options, says = BAD_OPTIONS[case]
    words = ["train", "vtrace-catch", "--out", "run", *TINY, *options]
    assert_refused(words, says, capfd)
    assert list(tmp_path.iterdir()) == []


BAD_COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "unknown command": (["trian"], ["'trian'", "train", "eval", "presets"]),
    "unknown preset": (["train", "vtrace-cach"], ["'vtrace-cach'", "did you mean vtrace-catch"]),
    "option before the preset": (
        ["train", "--seed", "3", "vtrace-catch"],
        ["--seed", "preset", "first"],
    ),
    "preset nothing like ours": (["train", "zzz"], ["'zzz'", "vtrace-catch"]),
    "presets with an argument": (["presets", "all"], ["presets takes no arguments", "all"]),
    "eval of nothing": (["eval"], ["RUN"]),
    "eval of no run": (["eval", "."], ["is not a run directory", "config.json", "--out"]),
    "eval of a missing directory": (["eval", "nowhere"], ["nowhere is not a run directory"]),
    "resume from nothing": (
        ["train", "vtrace-catch", "--out", "nowhere", "--resume"],
        ["nowhere is not a run directory"],
    ),
    "resume without a directory": (
        ["train", "vtrace-catch", "--resume"],
        ["resume needs a run directory", "--out"],
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
        ["env = sebulba/Catch", "sebulba/Memory", "another --out"],
    ),
    "resume with another preset": (
        ["train", "vtrace-cartpole", "--out", "RUN", "--resume"],
        ["vtrace-catch", "vtrace-cartpole", "sebulba train vtrace-catch --out RUN --resume"],
    ),
    "resume with another optimizer": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume", "--optimizer.name", "rmsprop"],
        ["optimizer.name = adam", "rmsprop", "Drop that option", "another --out"],
    ),
    "resume of a finished run": (
        ["train", "vtrace-catch", "--out", "RUN", "--resume"],
        ["total_steps is 100", "RUN", "--total-steps"],
    ),
    "no episodes": (["eval", "RUN", "--episodes", "0"], ["episodes is 0", "above 0"]),
    "wrong seed": (["eval", "RUN", "--seed", "-1"], ["seed is -1", "--seed"]),
    "unknown option of eval": (["eval", "RUN", "--episode", "3"], ["--episode"]),
    "two runs": (["eval", "RUN", "RUN"], ["RUN"]),
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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"algorithm": "Magic"}', '{"algorithm": null}'])
def test_damaged_config(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(text)
    assert_refused(["eval", str(tmp_path)], ["config.json"], capfd)


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


def test_eval_reports_the_true_return(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = fingerprint(finished)
    assert call(["eval", str(finished), "--episodes", "40", "--greedy"]) == 0
    output = capfd.readouterr().out
    for text in ("greedy", "standard error", "median", "length mean", "40"):
        assert text in output
    assert call(["eval", str(finished), "--episodes", "7", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found["returns"]) == found["episodes"] == 7
    assert found["mean"] == pytest.approx(sum(found["returns"]) / 7)
    assert call(["eval", str(finished), "--episodes", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out, parse_constant=pytest.fail)["standard_error"] is None
    assert fingerprint(finished) == before


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["train", "vtrace-catch", "--help"], ["usage: sebulba train vtrace-catch", "--lambda "]),
        (["train", "vtrace-catch", "--help"], ["--coordinator", "--num-processes", "--process-id"]),
        (["tune", "vtrace-catch", "--help"], ["usage: sebulba tune vtrace-catch", "--seconds"]),
        (["tune", "vtrace-catch", "--help"], ["--write", "--unroll-length"]),
        (["plan", "vtrace-catch", "-h"], ["usage: sebulba plan vtrace-catch", "--slice", "--json"]),
        (["pod", "--help"], ["usage: sebulba pod", "-- train PRESET", "--hosts"]),
    ],
)
def test_help_of_a_command_has_all_its_options(
    words: list[str], texts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(words) == 0
    output = capfd.readouterr().out
    for text in texts:
        assert text in output


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["train", "--help"], ["presets"]])
def test_help(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert call(words) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    if words != ["-h"] and words != ["--help"]:
        assert "vtrace-atari-shallow" in output
    if words != ["presets"]:
        assert "sebulba train PRESET --help lists every option" in output


@pytest.mark.parametrize("words", [[], ["train"]])
def test_without_what_it_needs_it_says_how(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(words) == 2
    assert "sebulba train PRESET" in capfd.readouterr().out


def test_help_of_a_preset(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["train", "vtrace-cartpole", "--help"]) == 0
    output = capfd.readouterr().out
    for text in ("--total-steps", "--network.core", "--env-options", "500000", "CartPole-v1"):
        assert text in output
    assert call(["eval", "--help"]) == 0
    assert "--episodes" in capfd.readouterr().out
