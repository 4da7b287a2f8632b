"""``sebulba presets``."""

from __future__ import annotations

import pytest
from command_line import assert_refused, call

from sebulba import presets


def test_the_table_has_every_preset_and_a_line_for_most(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["presets"]) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    for name, (config, text) in presets.PRESETS.items():
        assert name in output and config.env in output and f"{config.total_steps:,}" in output
        assert text.split()[0] in output
    lines = output.splitlines()
    # As wide as a pipe has room for.
    assert any(len(line.rstrip()) > 100 for line in lines)


def test_it_is_as_wide_as_asked(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert call(["presets"]) == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= 70


def test_it_takes_no_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(["presets", "all"], ["Unrecognized options: all", "sebulba presets"], capfd)
