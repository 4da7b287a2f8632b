"""Sweeps: one preset trained with every combination of seeds and values of fields."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sebulba.config import Config, fields_from_json, flat, to_json
from sebulba.rundir.reading import CONFIG, read_fields
from sebulba.rundir.run import load_run
from sebulba.validation import ConfigError

LOG = "output.txt"
_FREE = (
    *("preset", "seed", "out", "resume", "total_steps", "log_every", "env_threads"),
    *("stall_seconds", "grace_seconds", "checkpoint.", "evaluation."),
)
"""Fields, or what they begin with, that change nothing about what is learned in each step."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training of a sweep.

    Attributes:
      directory: its run directory, named after what is particular to it.
      words: the options of ``sebulba train``, with the preset as the first word.
      total_steps: agent steps after which it is complete.
    """

    directory: Path
    words: tuple[str, ...]
    total_steps: int

    def has_begun(self) -> bool:
        """Whether there is something to go on with."""
        return (self.directory / CONFIG).is_file()

    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        rows = load_run(self.directory).metrics if self.has_begun() else []
        return bool(rows) and (rows[-1]["steps"] or 0) >= self.total_steps

    def command(self) -> list[str]:
        """What trains it, or goes on with it."""
        more = ["--resume"] if self.has_begun() else []
        words = [*self.words, "--out", str(self.directory), *more]
        return [sys.executable, "-m", "sebulba", "train", *words]


def trials(
    preset: str,
    out: Path,
    seeds: Sequence[int],
    axes: Mapping[str, Sequence[str]],
    others: Sequence[str],
    parse: Callable[[Sequence[str]], Config],
) -> list[Trial]:
    """All trials, those of one setting one after the other.

    Args:
      preset: name of the preset.
      out: the directory of the sweep, which gets one run directory for each trial.
      seeds: of the trials of each setting.
      axes: options of ``sebulba train``, such as "--optimizer.learning-rate", and their values.
      others: options that are the same for all.
      parse: the config of a preset and the options of ``sebulba train``.

    Raises:
      ConfigError: a config is not valid, two trials are the same, or the directory of one is of a
        training with other settings.
    """
    found = []
    for values in itertools.product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        for seed in seeds:
            # Also those with one value: a sweep may get more of them later.
            named = {**{name.lstrip("-"): value for name, value in setting.items()}, "seed": seed}
            name = ",".join(f"{key}={value}" for key, value in named.items()).replace("/", "-")
            words = [word for pair in setting.items() for word in pair]
            every = (preset, *others, *words, "--seed", str(seed))
            config = parse(every)
            config.validate()
            _check_begun(out / name, config)
            found.append(Trial(out / name, every, config.total_steps))
    names = [trial.directory.name for trial in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{', '.join(twice)} would be trained twice: give each value once, and an option that "
            "takes several values after a --."
        )
    return found


def _check_begun(directory: Path, config: Config) -> None:
    """Refuse a directory of another sweep: its name does not say what is the same for all."""
    if not (directory / CONFIG).is_file():
        return
    begun = flat(read_fields(directory)[1])
    now = flat(fields_from_json(to_json(config, ""))[1])
    names = sorted(name for name in begun.keys() & now.keys() if not name.startswith(_FREE))
    if other := [name for name in names if begun[name] != now[name]]:
        were = ", ".join(f"{name} {begun[name]!r}, and not {now[name]!r}" for name in other)
        raise ConfigError(
            f"{directory} is of a training with {were}: a sweep of other settings needs a "
            "directory of its own. Give another --out."
        )


def train(found: Sequence[Trial], say: Callable[[str], None]) -> list[Trial]:
    """Train all that are not complete, one after the other; returns those that failed.

    Args:
      found: the trials. Those that were stopped go on from their last checkpoints.
      say: shows a line.

    Raises:
      KeyboardInterrupt: the trial in progress was interrupted.
    """
    failed = []
    for number, trial in enumerate(found, start=1):
        name = f"{number} of {len(found)}: {trial.directory.name}"
        if trial.is_complete():
            say(f"{name}: complete")
            continue
        say(name)
        if code := _train(trial):
            failed.append(trial)
            say(f"{name}: failed with exit code {code}; see {trial.directory}.{LOG}")
    return failed


def _train(trial: Trial) -> int:
    trial.directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside the run directory, which must be empty when a run begins.
    with Path(f"{trial.directory}.{LOG}").open("a") as log:
        process = subprocess.Popen(trial.command(), stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # It got the Ctrl-C too, and writes a checkpoint.
            raise


def slurm(found: Sequence[Trial]) -> str:
    """A job array of SLURM with one task for each trial; one that is started again goes on."""
    cases = "\n".join(
        f"{number}) train {shlex.join([str(trial.directory), *trial.words])} ;;"
        for number, trial in enumerate(found)
    )
    return f"""\
#!/usr/bin/env bash
#SBATCH --job-name=sebulba-sweep
#SBATCH --array=0-{len(found) - 1}
#SBATCH --ntasks=1
set -euo pipefail

# train DIRECTORY PRESET [OPTIONS]
train() {{
    local directory=$1
    shift
    if [ -f "$directory/config.json" ]; then
        set -- "$@" --resume
    fi
    srun sebulba train "$@" --out "$directory"
}}

case $SLURM_ARRAY_TASK_ID in
{cases}
esac"""
