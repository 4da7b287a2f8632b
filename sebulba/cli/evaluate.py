"""``sebulba eval``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.table import Table

from sebulba.cli import options, output

if TYPE_CHECKING:
    from sebulba.runners.evaluation import Evaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """The directory that --out named when training."""
    episodes: int = 100
    """How many whole episodes."""
    greedy: bool = False
    """Take the best action: no sampling (V-trace, PPO), no random ones (R2D2, PQN)."""
    seed: int = 0
    """Of environments and sampled actions."""
    checkpoint: int | Literal["best"] | None = None
    """Name of the checkpoint: its number in the folder checkpoints, or best, the one whose
    evaluation during training was best. None: the last."""
    max_steps: int | None = None
    """Agent steps after which an episode is cut off. None: as many as make 108,000 frames."""
    video: Path | None = None
    """Also write a video of one more episode: a file whose name ends in .mp4 or .gif."""
    json: bool = False
    """For machines: print one JSON object, with every return."""


def run(words: Sequence[str]) -> None:
    """Play whole episodes with a checkpoint of a run, and print the true return."""
    given = options.parse(Options(run_dir=tyro.MISSING), words, "sebulba eval", run.__doc__)

    from sebulba.runners.evaluation import evaluate_run

    with output.counting("episodes", given.episodes) as show:
        result = evaluate_run(
            given.run_dir,
            given.episodes,
            greedy=given.greedy,
            seed=given.seed,
            checkpoint=given.checkpoint,
            max_steps=given.max_steps,
            on_step=show,
        )
    if given.video is not None:
        _record(given)
    if given.json:
        output.write(_json(result, given))
    else:
        how = " · greedy" if given.greedy else ""
        output.write(f"{given.run_dir} · update {result.update}{how}")
        output.show(_table(result))


def _record(given: Options) -> None:
    from sebulba.runners.video import MAX_STEPS, record

    assert given.video is not None
    episode = record(
        given.run_dir,
        given.video,
        greedy=given.greedy,
        seed=given.seed,
        checkpoint=given.checkpoint,
    )
    of = f"its first {MAX_STEPS:,} steps" if episode is None else f"return {episode.returns[0]:g}"
    output.say(f"Video of one episode, {of}: {given.video}")


def _json(result: Evaluation, given: Options) -> str:
    summary = {"update": result.update, "greedy": given.greedy, **result.summary()}
    if given.episodes == 1:
        summary["standard_error"] = None
    return json.dumps({**summary, "returns": result.returns.tolist()}, allow_nan=False)


def _table(result: Evaluation) -> Table:
    table = Table("true return", "")
    table.columns[1].justify = "right"
    for name, value in result.summary().items():
        table.add_row(name.replace("_", " "), f"{value:,.6g}")
    return table
