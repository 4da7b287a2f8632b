"""The committed table of environments."""

from __future__ import annotations

from paths import ROOT


def test_the_table_of_environments_is_what_was_found() -> None:
    table = (ROOT / "benchmarks" / "results" / "environments.md").read_text()
    assert (
        len(table.splitlines()) == 19 and table in (ROOT / "docs" / "environments.md").read_text()
    )
