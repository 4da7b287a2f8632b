"""Sweeps: which trainings there are, and how each of them is begun, left and gone on with."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, call
from whole_runs import tiny

from sebulba.config import CheckpointConfig, to_json
from sebulba.planning import sweep
from sebulba.validation import ConfigError

SETTINGS = ["--optimizer.learning-rate", "1e-3", "2e-3"]
SHORT = ["--total-steps", "200", "--network.hidden-sizes", "8"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that a sweep would have started; each run is complete then, but the third."""
    commands: list[list[str]] = []

    def train(trial: sweep.Trial) -> int:
        commands.append(trial.command()[4:])
        if len(commands) == 3:
            return 1
        trial.directory.mkdir(parents=True, exist_ok=True)
        fields = {"algorithm": "vtrace", "seed": 0, "total_steps": 200, "preset": "vtrace-catch"}
        (trial.directory / "config.json").write_text(json.dumps(fields))
        row = {"update": 1, "steps": 200, "seconds": 1.0, "episode_return_mean_100": 1.0}
        more = {"steps_per_second": 200.0, "policy_lag_mean": 0.0, "loss": 1.0}
        (trial.directory / "metrics.jsonl").write_text(json.dumps({**row, **more}) + "\n")
        return 0

    monkeypatch.setattr(sweep, "_train", train)
    return commands


@pytest.mark.slow
def test_all_combinations_and_what_is_left(
    trained: list[list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "vtrace-catch", "--seeds", "2", "--out", str(tmp_path), *SETTINGS, "--"]
    assert call([*words, *SHORT]) == 1
    names = [
        f"optimizer.learning-rate={rate},seed={seed}"
        for rate in ("1e-3", "2e-3")
        for seed in (0, 1)
    ]
    rates = ["1e-3", "1e-3", "2e-3", "2e-3"]
    assert trained == [
        [
            *["vtrace-catch", *SHORT, "--optimizer.learning-rate", rate, "--seed", name[-1]],
            *["--out", str(tmp_path / name)],
        ]
        for name, rate in zip(names, rates, strict=True)
    ]
    output, message = capfd.readouterr()
    assert "1 of 4 trainings failed" in message
    assert (tmp_path / "runs.png").is_file()
    assert all(name in output for name in (names[0], names[1], names[3]))
    # The same command again: what is complete stays, what failed is trained.
    trained.clear()
    assert call([*words, *SHORT]) == 0
    assert [command[-1] for command in trained] == [str(tmp_path / names[2])]


def test_what_was_stopped_goes_on(tmp_path: Path) -> None:
    (trial,) = sweep.trials("vtrace-catch", tmp_path, [3], {}, (), lambda words: tiny())
    assert trial.directory == tmp_path / "seed=3"
    assert "--resume" not in trial.command()
    trial.directory.mkdir()
    (trial.directory / "config.json").write_text('{"algorithm": "vtrace", "total_steps": 200}')
    assert trial.command()[-1] == "--resume"


def test_a_sweep_may_grow_but_its_directories_are_not_taken_for_those_of_another(
    tmp_path: Path,
) -> None:
    def trials(*envs: str, **changes: Any) -> list[sweep.Trial]:
        return sweep.trials(
            "vtrace-catch", tmp_path, [0], {"--env": envs}, (), lambda words: tiny(**changes)
        )

    (found,) = trials("a:b/c", discount=0.9)
    assert found.directory.name == "env=a:b-c,seed=0"
    found.directory.mkdir()
    (found.directory / "config.json").write_text(to_json(tiny(discount=0.9), "vtrace"))
    assert trials("a:b/c", "d", discount=0.9)[0] == found
    saving = CheckpointConfig(interval=7)
    trials("a:b/c", discount=0.9, stall_seconds=900.0, log_every=7, checkpoint=saving)
    with pytest.raises(ConfigError, match=r"env=a.* discount 0\.9, and not 0\.8:.*another --out"):
        trials("a:b/c", discount=0.8)


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "unknown preset": (["vtrace-cath"], ["vtrace-cath", "vtrace-catch"]),
    "no seeds": (["vtrace-catch", "--seeds", "0"], ["seeds is 0", "above 0"]),
    "seed": (["vtrace-catch", "--seed", "1", "2"], ["give --seeds"]),
    "no values": (
        ["vtrace-catch", "--discount", "--", "--seed", "1"],
        ["--discount has no values"],
    ),
    "wrong value": (["vtrace-catch", "--discount", "0.9", "2"], ["discount"]),
    "twice": (["vtrace-catch", "--discount", "0.9", "0.9"], ["discount=0.9,seed=0", "twice"]),
    "several": (
        ["vtrace-catch", "--network.hidden-sizes", "8", "8"],
        ["several values after a --"],
    ),
    "unknown field": (["vtrace-catch", "--discont", "0.9"], ["--discont", "--discount"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words, says = WRONG[case]
    assert_refused(["sweep", *words], says, capfd)
    assert not list(tmp_path.iterdir())


def test_a_job_array(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--seeds", "2", "--out", str(tmp_path / "a b"), "--slurm", *SETTINGS, "--", *SHORT]
    assert call(["sweep", "vtrace-catch", *words]) == 0
    script = capfd.readouterr().out
    assert "#SBATCH --array=0-3\n" in script
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)

    def task(number: int) -> list[str]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment: Any = {**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(number)}
        command = ["bash", "-c", script]
        return subprocess.check_output(command, env=environment, text=True).splitlines()

    directory = tmp_path / "a b" / "optimizer.learning-rate=2e-3,seed=0"
    of_setting = [*SHORT, "--optimizer.learning-rate", "2e-3", "--seed", "0"]
    expected = ["sebulba", "train", "vtrace-catch", *of_setting]
    assert task(2) == [*expected, "--out", str(directory)]
    directory.mkdir(parents=True)
    (directory / "config.json").touch()
    assert task(2) == [*expected, "--resume", "--out", str(directory)]


def test_a_sweep_in_which_all_fail_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "_train", lambda trial: 2)
    assert call(["sweep", "vtrace-catch", "--seeds", "2", "--out", str(tmp_path)]) == 1
    assert "2 of 2 trainings failed" in capfd.readouterr().err


@pytest.mark.slow
def test_trainings_of_a_sweep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "vtrace-catch", "--seeds", "2", "--out", str(tmp_path / "sweep")]
    assert call([*words, "--", "--total-steps", "20000"]) == 0
    assert capfd.readouterr().out.count("complete") == 2
    assert call([*words, "--", "--total-steps", "40000"]) == 0
    steps = re.findall(r"complete +(40,\d{3}) ", capfd.readouterr().out)
    assert len(steps) == 2, "both go on with what is left to do"
