"""``sebulba tune``."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from sebulba.cli import options, output
from sebulba.config import Config
from sebulba.validation import ConfigError

if TYPE_CHECKING:
    from sebulba.planning.tune import Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How to search; no part of the config."""

    seconds: float = 6.0
    """Of each trial, once it is compiled."""
    write: Path
    """Where the options of the fastest setting go."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    search: Annotated[Search, options.UNPREFIXED]
    config: Annotated[Config, options.UNPREFIXED]


def run(words: Sequence[str]) -> None:
    """Find the fastest setting of a preset on this machine, in a few minutes.

    Trains for a few seconds with each of several settings that leave the learner's batch as it is:
    environments of an actor, actors of a device, threads of an actor's environments, microbatches.
    Prints agent steps/s and writes the options of the fastest so far, for: sebulba train PRESET
    $(cat FILE)
    """
    default = options.preset(words, "tune", run.__doc__)
    prog = f"sebulba tune {default.preset}"
    search = Search(write=Path(f"{options.file_name(default.preset)}.tuned"))
    given = options.parse(Options(search=search, config=default), words[1:], prog, run.__doc__)
    seconds, write = given.search.seconds, given.search.write
    if seconds <= 0:
        raise ConfigError(f"seconds is {seconds}: it must be above 0. Set --seconds.")

    from sebulba.planning import tune

    trials: list[Trial] = []
    train = options.to_paste("train", default.preset, *_of_the_config(words[1:], search))
    with tune.TrainingRate(seconds) as measure:
        for trial in tune.search(given.config, measure):
            trials.append(trial)
            best = max(trials, key=lambda trial: trial.steps_per_second)
            if best.error is None:  # At once: whatever ends this early leaves the best so far.
                write.write_text(best.options() + "\n")
            output.say(_shown(trial))
    if best.error is not None:
        raise ConfigError(
            f"no setting of {default.preset} trains on this machine; the first ended with "
            f"{trials[0].error}. See all of it with: {train}"
        )
    first = trials[0].steps_per_second
    gain = f" ({best.steps_per_second / first:.2f} times the first)" if first else ""
    output.say(f"best: {best.options()}{gain}. Train with it by:")
    output.say(f"{train} $(cat {shlex.quote(str(write))})")


def _of_the_config(words: Sequence[str], search: Search) -> list[str]:
    """``words`` without the options of the search."""
    _, others = tyro.cli(Search, default=search, args=words, return_unknown_args=True)
    return others


def _shown(trial: Trial) -> str:
    if trial.error is not None:
        return f"{'failed':>10}          {trial.options()}  {trial.error}"
    return f"{trial.steps_per_second:10,.0f} steps/s  {trial.options()}"
