"""What the tests of the command line share."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sebulba.cli.main import main

TINY = (
    *("--total-steps", "100", "--envs-per-actor", "4", "--batch-size", "4"),
    *("--unroll-length", "5", "--network.hidden-sizes", "8"),
)


def call(words: Sequence[str]) -> int:
    """The exit code of ``sebulba WORDS``, run in this process."""
    try:
        main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def train(out: Path, *options: str, preset: str = "vtrace-catch") -> int:
    return call(["train", preset, "--out", str(out), *TINY, *options])


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


def fingerprint(directory: Path) -> dict[str, str]:
    """Every path below ``directory``, with the hash of each file."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "directory"
        for path in sorted(directory.rglob("*"))
    }


def in_a_shell(words: str, around: str = "{}", timeout: float = 120) -> tuple[int, str, str]:
    """Exit code of ``sebulba WORDS`` and all that is printed, by a shell that runs ``around``."""
    command = around.format(f"{shlex.quote(sys.executable)} -m sebulba {words}")
    # The tests' own eight devices are not those of a user.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout, done.stderr
