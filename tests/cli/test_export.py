"""``sebulba export``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import assert_refused, call, fingerprint

from sebulba.rundir.reading import best_in, checkpoints_in

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


def test_the_best_checkpoint_is_exported_and_filmed(finished: Path, tmp_path: Path) -> None:
    run, agent, video = (tmp_path / name for name in ("run", "agent", "video.gif"))
    shutil.copytree(finished, run)
    checkpoints_in(run).rename(best_in(run))  # There is no other.
    best = ["--checkpoint", "best"]
    assert call(["export", str(run), str(agent), *best]) == 0
    assert (agent / "params.safetensors").is_file()
    assert call(["eval", str(run), "--episodes", "1", "--video", str(video), *best]) == 0
    assert video.read_bytes().startswith(b"GIF")


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
