"""Output that nobody reads, or reads only in part, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import in_a_shell
from whole_runs import rows_of

UNREAD = 141


@pytest.mark.parametrize(
    "words", ["--help", "presets", pytest.param("eval RUN --json", marks=pytest.mark.slow)]
)
def test_a_command_ends_quietly_where_nobody_reads(words: str, finished: Path) -> None:
    # The pipe is read by nobody before anything is written.
    code, _, errors = in_a_shell(words.replace("RUN", str(finished)), "(sleep 0.2; {}) | true")
    assert (code, errors) == (UNREAD, "")


def test_the_first_lines_of_a_long_text() -> None:
    code, output, errors = in_a_shell("train vtrace-atari --help", "{} | head -1")
    assert output == "usage: sebulba train vtrace-atari [-h] [OPTIONS]\n"
    assert code in (0, UNREAD) and errors == ""


@pytest.mark.slow
def test_a_training_goes_on(tmp_path: Path) -> None:
    words = f"train vtrace-catch --total-steps 3000 --out {tmp_path / 'run'}"
    code, output, errors = in_a_shell(words, "{} | head -1")
    assert (code, errors) == (0, "")
    assert output.startswith("vtrace-catch · sebulba/Catch") and output.count("\n") == 1
    assert rows_of(tmp_path / "run")[-1]["steps"] >= 3000


def test_without_standard_output() -> None:
    assert in_a_shell("train --help", "{} >&-") == (0, "", "")
