"""``sebulba presets``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.table import Table

from sebulba.cli import options, output


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command takes: nothing."""


def run(words: Sequence[str]) -> None:
    """List the presets."""
    options.parse(Options(), words, "sebulba presets", run.__doc__)

    from sebulba import presets

    table = Table("preset", "environment", "steps", "what it is", box=None)
    for name, (config, text) in presets.PRESETS.items():
        table.add_row(name, config.env, f"{config.total_steps:,}", text)
    output.show(table)
