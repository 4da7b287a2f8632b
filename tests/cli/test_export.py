"""``sebulba export``."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import assert_refused, call, fingerprint

FILES = {"safetensors": {"agent.json", "params.safetensors"}, "jax": {"agent.jax"}}


@pytest.mark.parametrize("format", FILES)
def test_an_agent_is_written(
    format: str, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = fingerprint(finished)
    out = tmp_path / "deep" / "agent"
    assert call(["export", str(finished), str(out), "--format", format]) == 0
    assert {path.name for path in out.iterdir()} == {*FILES[format], "README.md"}
    assert f"{out}: " in capfd.readouterr().out
    card = (out / "README.md").read_text()
    assert "sebulba/Catch" in card and "return in training" in card
    assert fingerprint(finished) == before


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["RUN_DIR", "required"]),
    "one word": (["RUN"], ["DIR", "required"]),
    "no run": ([".", "agent"], ["is not a run directory"]),
    "not empty": (["RUN", "RUN"], ["nothing is overwritten"]),
    "unknown checkpoint": (["RUN", "agent", "--checkpoint", "1"], ["no checkpoint 1"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case: str, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words, says = WRONG[case]
    assert_refused(["export", *(word.replace("RUN", str(finished)) for word in words)], says, capfd)
    assert not Path("agent").exists()
