"""``sebulba plan``: its options; what it does with them is tested with ``planning.plan``."""

from __future__ import annotations

import pytest
from command_line import assert_refused, call


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "vtrace-catch", "-h"]) == 0
    output = capfd.readouterr().out
    assert output.startswith("usage: sebulba plan vtrace-catch [-h] [OPTIONS]\n")
    for text in ("--slice NAME", "--steps-per-core", "458 to 958", "--json", "--env STR"):
        assert text in output


def test_it_needs_a_slice(capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(["plan", "vtrace-catch"], ["--slice NAME", "v5e-16", "required"], capfd)
