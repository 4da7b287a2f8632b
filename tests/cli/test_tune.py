"""``sebulba tune``: its options; what it does with them is tested with ``planning.tune``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import assert_refused, call

from sebulba import presets
from sebulba.planning import tune


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["tune", "vtrace-catch", "--help"]) == 0
    output = capfd.readouterr().out
    assert output.startswith("usage: sebulba tune vtrace-catch [-h] [OPTIONS]\n")
    for text in ("--seconds", "--write", "(default: vtrace-catch.tuned)", "--unroll-length"):
        assert text in output


def test_no_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(["tune", "vtrace-catch", "--seconds", "0"], ["seconds is 0", "above 0"], capfd)


def test_the_command_to_train_with(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object) -> Iterator[tune.Trial]:
        yield tune.Trial({"env_threads": 1}, 10.0)

    monkeypatch.setattr(tune, "search", search)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    config = presets.get("vtrace-catch")
    monkeypatch.setitem(presets.PRESETS, "vtrace-catch", (config, ""))
    words = ["--write=the file", "--env-options", "rows", "a b", "--seconds", "1", "--seed", "3"]
    assert call(["tune", "vtrace-catch", *words]) == 0
    train = "sebulba train vtrace-catch --env-options rows 'a b' --seed 3 $(cat 'the file')"
    assert capfd.readouterr().out.splitlines()[-1] == train
