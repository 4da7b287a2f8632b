"""``sebulba pod``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from sebulba.cli import options, output
from sebulba.validation import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes, before the --."""

    hosts: int = 2
    """How many processes."""
    devices_per_host: int = 4
    """CPU devices of each process."""


def run(words: Sequence[str]) -> None:
    """Train in several local processes, as hosts of a pod: for development and tests.

    The command comes after a --, as in: sebulba pod --hosts 2 -- train PRESET --out DIR
    """
    separator = words.index("--") if "--" in words else len(words)
    given = options.parse(Options(), words[:separator], "sebulba pod", run.__doc__)
    command = words[separator + 1 :]
    if command[:1] != ["train"]:
        raise ConfigError(
            f"the command is {command}: a pod trains. Write it after a --, as in: sebulba pod "
            "--hosts 2 -- train vtrace-catch --out DIR"
        )
    if given.hosts < 1 or given.devices_per_host < 1:
        raise ConfigError(
            f"hosts is {given.hosts} and devices_per_host is {given.devices_per_host}: both must "
            "be above 0."
        )

    from sebulba.cli import pod_processes

    exits = pod_processes.run(given.hosts, given.devices_per_host, command)
    failures = [end for end in exits if end.code != 0]
    if failures:
        first = failures[0]
        how = f"signal {-first.code}" if first.code < 0 else f"exit code {first.code}"
        output.say(f"host {first.host} ended first, with {how}")
        sys.exit(first.code if first.code > 0 else 128 - first.code)
