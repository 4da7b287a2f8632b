"""``sebulba pod``: its options; what it starts is tested with ``pod_processes``."""

from __future__ import annotations

import pytest
from command_line import assert_refused, call

from sebulba.cli import pod_processes
from sebulba.cli.pod_processes import Exit


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["pod", "--help"]) == 0
    output = capfd.readouterr().out
    for text in ("usage: sebulba pod [-h]", "-- train PRESET", "--hosts INT", "--devices-per-host"):
        assert text in output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["the command is []", "a pod trains", "after a --"]),
        (["--", "eval", "run"], ["the command is ['eval', 'run']", "a pod trains"]),
        (["--hosts", "0", "--", "train", "vtrace-catch"], ["hosts is 0", "above 0"]),
        (["--host", "2", "--", "train", "vtrace-catch"], ["--host", "Perhaps you meant"]),
    ],
)
def test_wrong_input(words: list[str], says: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(["pod", *words], says, capfd)


@pytest.mark.parametrize(
    ("code", "exit_code", "how"), [(-9, 137, "signal 9"), (2, 2, "exit code 2")]
)
def test_it_ends_as_the_first_host_that_failed(
    code: int,
    exit_code: int,
    how: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def run(*arguments: object) -> list[Exit]:
        started.append(arguments)
        return [Exit(0, 0), Exit(2, code), Exit(1, 1)]

    monkeypatch.setattr(pod_processes, "run", run)
    words = ["train", "vtrace-catch", "--seed", "3"]
    assert call(["pod", "--hosts", "3", "--", *words]) == exit_code
    assert started == [(3, 4, words)]
    assert f"host 2 ended first, with {how}" in capfd.readouterr().out
