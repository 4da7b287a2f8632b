"""``sebulba plot`` and ``sebulba runs``."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import assert_refused, call, fingerprint, train


@pytest.mark.parametrize(
    ("name", "begins"), [("deep/runs.png", b"\x89PNG"), ("runs.svg", b"<?xml")]
)
def test_a_picture_is_written(
    name: str, begins: bytes, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, out = fingerprint(finished), tmp_path / name
    assert call(["plot", str(finished), "--x", "minutes", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(begins)
    assert f"1 run drawn: {out}" in capfd.readouterr().out
    assert fingerprint(finished) == before


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["there are no runs"]),
    "no run": (["."], ["there is no run in ."]),
    "another kind of file": (["RUN", "--out", "runs.gif"], ["--out is runs.gif", ".png"]),
    "unknown metric": (["RUN", "--metrics", "los"], ["no run has the metric 'los'", "'loss'"]),
    "unknown field": (["RUN", "--by", "sed"], ["by is 'sed'", "'seed'"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(
    case: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words, says = WRONG[case]
    assert_refused(["plot", *(word.replace("RUN", str(finished)) for word in words)], says, capfd)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_names_of_unlike_runs_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """However many fields the runs differ in."""
    names = ["a-catch-run-with-a-long-name", "a-cartpole-run-with-a-long-name"]
    for name, preset in zip(names, ("vtrace-catch", "vtrace-cartpole"), strict=True):
        assert train(tmp_path / name, preset=preset) == 0
    monkeypatch.setenv("COLUMNS", "80")
    capfd.readouterr()
    assert call(["runs", str(tmp_path)]) == 0
    table, differences = capfd.readouterr().out.split("They differ in:")
    assert all(name in table and name in differences for name in names)
    assert "env=sebulba/Catch" in differences and "env=CartPole-v1" in differences


def test_runs_are_listed(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["runs", str(finished.parent)]) == 0
    output = capfd.readouterr().out
    assert all(word in output for word in ("steps/s", finished.name, "complete"))


def test_runs_are_aggregated(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metric = "episode_return_mean_100"
    assert call(["runs", str(finished.parent), "--aggregate", "--metric", metric]) == 0
    output = capfd.readouterr().out
    assert all(word in output for word in (metric, "IQM", "optimality gap"))


def test_no_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(["runs", str(tmp_path)], [f"there is no run in {tmp_path}"], capfd)
