"""``sebulba check-env``."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import assert_refused, call

MODULE = """
import numpy as np
from sebulba.envs import Catch

class Late(Catch):
    def step(self, action):
        return super().step(action)._replace(first=np.ones(self.spec.num_envs, bool))

class Gone(Catch):
    def reset(self):
        raise OSError("no such game")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_worlds.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["ENV", "required"]),
    "an unknown id": (["CartPol-v1"], ["unknown environment", "CartPole-v1"]),
    "an unknown option": (["sebulba/Memory", "--env-options", "dely", "3"], ["dely", "delay"]),
    "no steps": (["sebulba/Catch", "--num-steps", "0"], ["num_steps is 0", "at least 1"]),
    "a broken rule": (
        ["wrong_worlds:Late"],
        ["is True in step 1"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    words, says = WRONG[case]
    assert_refused(["check-env", *words], says, capfd)


def test_what_the_environment_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="no such game") as raised:
        call(["check-env", "wrong_worlds:Gone"])
    assert raised.value.__notes__ == ["in reset of the environment"]


def test_what_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["sebulba/Memory", "--env-options", "delay", "3", "--num-steps", "100"]
    assert call(["check-env", *words, "--num-envs", "2"]) == 0
    output = capfd.readouterr().out
    for text in ("sebulba/Memory breaks no rule", "float32 [3]", "one of 2", "200", "Look at this"):
        assert text in output
