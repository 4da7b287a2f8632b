"""``sebulba sweep``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sebulba.cli import options, output, runs, train
from sebulba.config import Config
from sebulba.validation import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes, besides the fields to vary."""

    seeds: int = 1
    """How many seeds for each setting: 0, 1, and so on."""
    out: Path = Path("runs") / "sweep"
    """The directory of the sweep, with one run directory for each training. What is complete in it
    is left as it is, and what was stopped goes on."""
    slurm: bool = False
    """Only print a job array of SLURM that trains all of them, a task for each."""


def run(words: Sequence[str]) -> None:
    """Train one preset with several seeds and values of fields, one after the other.

    Options of train with several values are varied, in all combinations: --optimizer.learning-rate
    1e-4 3e-4. Options after a -- are the same for all trainings. A table and a picture come at the
    end. The same command again goes on where it was stopped.
    """
    own, axes, others = _split(list(words[1:]))
    preset = options.preset(words, "sweep", run.__doc__)
    given = options.parse(Options(), own, f"sebulba sweep {preset.preset}", run.__doc__)
    if given.seeds < 1:
        raise ConfigError(f"seeds is {given.seeds}, but must be above 0: --seeds 3, say.")

    from sebulba.planning import sweep

    seeds = range(given.seeds)
    parse = partial(_config, preset)
    found = sweep.trials(preset.preset, given.out, seeds, axes, others, parse)
    if given.slurm:
        output.write(sweep.slurm(found))
        return
    failed = sweep.train(found, output.say)
    if len(failed) < len(found):
        _report(given.out)
    if failed:
        output.say_error(f"{len(failed)} of {len(found)} trainings failed.")
        sys.exit(1)


def _config(preset: Config, words: Sequence[str]) -> Config:
    return train.parse(preset, words[1:]).config


def _split(words: list[str]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """The command's own options, the fields to vary with their values, and what all have."""
    end = words.index("--") if "--" in words else len(words)
    own: list[str] = []
    axes: dict[str, list[str]] = {}
    names = {f"--{field.name}" for field in dataclasses.fields(Options)} | {"-h", "--help"}
    varied: list[str] | None = None
    for word in words[:end]:
        name, _, value = word.partition("=")
        if word.startswith("--") or word == "-h":
            varied = None if name in names else axes.setdefault(name, [])
            if varied is None:
                own.append(word)
            elif value:
                varied.append(value)
        else:
            (own if varied is None else varied).append(word)
    for name, values in axes.items():
        if name == "--seed":
            raise ConfigError("--seed is varied by the sweep itself: give --seeds.")
        if not values:
            raise ConfigError(
                f"{name} has no values: give some, or write it after a -- if it is a switch."
            )
    return own, axes, words[end + 1 :]


def _report(out: Path) -> None:
    from sebulba.rundir.run import find_runs, plot

    found = [each for each in find_runs(out) if each.metrics]
    runs.show(found, out)
    try:
        figure = plot(found)
    except ConfigError as error:  # Without matplotlib, the table is what there is.
        output.say(str(error))
        return
    figure.savefig(out / "runs.png", dpi=150)
    output.write(f"{out / 'runs.png'}")
