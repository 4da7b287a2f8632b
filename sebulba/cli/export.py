"""``sebulba export``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sebulba.cli import options, output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """The directory that --out named when training."""
    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Where the agent goes: a new or empty directory."""
    format: Literal["safetensors", "jax"] = "safetensors"
    """safetensors: parameters, config and specs, for sebulba.load. jax: one file, a function that
    needs nothing but jax."""
    checkpoint: int | Literal["best"] | None = None
    """Name of the checkpoint: its number in the folder checkpoints, or best, the one whose
    evaluation during training was best. None: the last."""
    greedy: bool = False
    """With jax: take the best action. sebulba.load has its own greedy."""
    num_envs: int = 1
    """With jax: how many environments the function acts in at once."""


def run(words: Sequence[str]) -> None:
    """Write the agent of a run into a directory of its own, with a model card."""
    default = Options(run_dir=tyro.MISSING, directory=tyro.MISSING)
    given = options.parse(default, words, "sebulba export", run.__doc__)

    from sebulba.runners.exporting import export

    export(
        given.run_dir,
        given.directory,
        format=given.format,
        checkpoint=given.checkpoint,
        greedy=given.greedy,
        num_envs=given.num_envs,
    )
    size = sum(path.stat().st_size for path in given.directory.iterdir())
    output.write(f"{given.directory}: {size / 1000:,.0f} KB, with a model card (README.md)")
