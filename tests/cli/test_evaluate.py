"""``sebulba eval``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import assert_refused, call, fingerprint

WRONG: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["_DIR", "required"]),
    "no run": (["."], ["is not a run directory", "config.json", "--out"]),
    "a missing directory": (["nowhere"], ["nowhere is not a run directory"]),
    "no episodes": (["RUN", "--episodes", "0"], ["episodes is 0", "above 0"]),
    "wrong seed": (["RUN", "--seed", "-1"], ["seed is -1", "--seed"]),
    "unknown option": (["RUN", "--episode", "3"], ["--episode", "Perhaps you meant", "--episodes"]),
    "no best checkpoint": (
        ["RUN", "--checkpoint", "best"],
        ["no best checkpoint", "Leave out checkpoint"],
    ),
    "no steps": (["RUN", "--max-steps", "0"], ["max_steps is 0", "--max-steps"]),
    "unknown checkpoint": (["RUN", "--checkpoint", "1"], ["no checkpoint 1", "one of ["]),
    "two runs": (["RUN", "RUN"], ["RUN"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case: str, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words, says = ([text.replace("RUN", str(finished)) for text in texts] for texts in WRONG[case])
    before = fingerprint(finished)
    assert_refused(["eval", *words], says, capfd)
    assert fingerprint(finished) == before


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["eval", "--help"]) == 0
    output = capfd.readouterr().out
    assert output.startswith("usage: sebulba eval [-h] [OPTIONS] RUN_DIR\n")
    assert "--episodes" in output


@pytest.mark.parametrize("text", ["", "{", "[]", '{"algorithm": "Magic"}', '{"algorithm": null}'])
def test_damaged_config(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(text)
    assert_refused(["eval", str(tmp_path)], ["config.json"], capfd)


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
