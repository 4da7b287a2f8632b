"""``sebulba check-env``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from sebulba.cli import options, output
from sebulba.config import Config, Option
from sebulba.validation import ConfigError

if TYPE_CHECKING:
    from sebulba.envs import EnvReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """As --env of train takes it: an id of EnvPool, gymnasium:ID, MODULE:NAME and so on."""
    env_options: dict[str, Option] = dataclasses.field(default_factory=dict)
    """Options of the environment: KEY VALUE [KEY VALUE ...]."""
    atari_protocol: Literal["machado", "impala"] = "machado"
    """As of train."""
    num_envs: int = 4
    """How many are stepped together."""
    num_steps: int = 2000
    """How often they are stepped."""
    seed: int = 0
    """Of environments and actions."""
    timeout_seconds: float = 60.0
    """How long one step may take."""


def run(words: Sequence[str]) -> None:
    """Play an environment with random actions, and say which rule it breaks."""
    given = options.parse(Options(env=tyro.MISSING), words, "sebulba check-env", run.__doc__)
    for name in ("num_envs", "num_steps"):
        if getattr(given, name) < 1:
            raise ConfigError(f"{name} is {getattr(given, name)}: it must be at least 1.")

    from sebulba.envs import check_env
    from sebulba.runners.environments import default_make_env

    config = Config(
        env=given.env, env_options=given.env_options, atari_protocol=given.atari_protocol
    )
    start = time.monotonic()
    report = check_env(
        default_make_env(config),
        given.num_envs,
        given.num_steps,
        given.seed,
        given.timeout_seconds,
    )
    output.write(f"{given.env} breaks no rule ({time.monotonic() - start:.1f} s).")
    output.show(_table(report))
    for warning in report.warnings:
        output.write(f"Look at this: {warning}")


def _table(report: EnvReport) -> Table:
    table = Table("with random actions", "")
    for name, value in report.summary().items():
        table.add_row(escape(name), escape(value))
    return table
