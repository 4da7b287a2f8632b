"""``sebulba train``."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from sebulba.cli import options, output
from sebulba.config import Config
from sebulba.remote.settings import Listen
from sebulba.runtime import interrupt
from sebulba.validation import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """How this process joins those on other hosts; no part of the config."""

    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Of process 0, where JAX does not find the other hosts by itself, as it does on Cloud TPU
    slices and under SLURM and Open MPI. Start the same command on each of them."""
    num_processes: int | None = None
    """How many processes there are, with --coordinator."""
    process_id: int | None = None
    """Which of them this is, from 0."""
    heartbeat_seconds: int = 100
    """A host that is not heard of for so long counts as dead, and the others end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    config: Annotated[Config, options.UNPREFIXED]
    launch: Annotated[Launch, options.UNPREFIXED] = Launch()
    listen: Annotated[Listen, options.UNPREFIXED] = Listen()


def run(words: Sequence[str]) -> None:
    """Train a preset."""
    # Before training, which listens for Ctrl-C itself, and after it, there is nothing to save.
    with interrupt.ending_at_once():
        _train(words)


def _train(words: Sequence[str]) -> None:
    default = options.preset(words, "train", run.__doc__)
    given = parse(default, words[1:])

    from sebulba.devices import cluster, distributed
    from sebulba.runners import training

    config, launch = given.config, given.launch
    cluster.initialize(
        launch.coordinator,
        launch.num_processes,
        launch.process_id,
        heartbeat_seconds=launch.heartbeat_seconds,
    )
    if config.out is None and distributed.num_hosts() > 1:
        raise ConfigError(
            f"out is None, but {distributed.num_hosts()} hosts write one run directory: name a "
            "place that all of them reach with --out."
        )
    if config.out is None and not config.resume:
        config = dataclasses.replace(config, out=_new_directory(config))
    try:
        result = training.train(config, listen=given.listen)
    except KeyboardInterrupt:
        output.say(_interrupted(config))
        raise
    assert config.out is not None
    if distributed.is_primary():
        _report(config.out, result.metrics)


def parse(default: Config, words: Sequence[str]) -> Options:
    """What the options ``words`` make of ``default``.

    With ``--resume``, the saved config of the run directory is the default.
    """
    given = _parse(default, words)
    if given.config.resume and given.config.out is not None:
        saved = _saved(given.config.out, default.preset)
        given = _parse(dataclasses.replace(saved, resume=False), words)
    return given


def _parse(default: Config, words: Sequence[str]) -> Options:
    given = options.parse(
        Options(config=default),
        words,
        f"sebulba train {default.preset}",
        f"{run.__doc__}\n\n{_about(default)}",
    )
    # A shell leaves the ~ in --out=~/runs as it is.
    out = given.config.out and given.config.out.expanduser()
    return dataclasses.replace(given, config=dataclasses.replace(given.config, out=out))


def _about(config: Config) -> str:
    text = inspect.getdoc(type(config)) or ""
    # What dataclasses write themselves says no more than the options.
    return "" if text.startswith(f"{type(config).__name__}(") else text


def _saved(out: Path, preset: str) -> Config:
    from sebulba.rundir.reading import load_config

    saved = load_config(out)
    if saved.preset != preset:
        command = _resume_command(saved.preset, out)
        raise ConfigError(
            f"{out} was trained with the preset {saved.preset!r}, not {preset!r}: resume it "
            + (f"with: {command}" if saved.preset else "from Python, where it was configured.")
        )
    return saved


def _new_directory(config: Config) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / options.file_name(f"{config.preset}-{config.env}-s{config.seed}-{now}")


def _interrupted(config: Config) -> str:
    from sebulba.rundir.reading import has_checkpoints

    assert config.out is not None
    if not has_checkpoints(config.out):
        return "Interrupted before the first checkpoint: nothing was saved."
    command = _resume_command(config.preset, config.out)
    return f"Interrupted; go on from the last checkpoint with: {command}"


def _resume_command(preset: str, out: Path) -> str:
    return options.to_paste("train", preset, "--out", str(out), "--resume")


def _report(out: Path, rows: Sequence[Mapping[str, float | int | None]]) -> None:
    last = rows[-1]
    mean = last["episode_return_mean_100"]
    if mean is not None:
        output.say(f"Return, mean of the last 100 episodes: {mean:.2f}")
    if (score := last.get("evaluation_return_mean")) is not None:
        best = last["evaluation_best_return_mean"]
        # A run that was told to stop gives its last evaluation up.
        final = last["evaluation_update"] == last["update"]
        whose = "final parameters" if final else "parameters that were evaluated last"
        output.say(f"Return of the {whose} in their evaluation: {score:.2f}")
        output.say(f"Return of the best ones: {best:.2f}; sebulba eval takes --checkpoint best")
    output.say(f"{last['steps']:,} steps in {last['seconds']:.1f} s. Run directory: {out}")
    output.say(f"Evaluate it with: {options.to_paste('eval', str(out))}")
