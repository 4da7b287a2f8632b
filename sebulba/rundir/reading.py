"""What a run directory holds, for those who only read it, and whether its run can be resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sebulba import algorithms, plugins
from sebulba.algorithms import Algorithm
from sebulba.config import Config, build, check_is_directory, fields_from_json, flat
from sebulba.metrics.writer import FILE_NAME
from sebulba.rundir.checkpoint import Checkpointer, DamagedError
from sebulba.validation import ConfigError

_SHAPING = ("env", "env_options", "atari_protocol", "network", "optimizer.name")
"""Config fields that a resumed run cannot change, because the arrays in a checkpoint depend on them
or what they were trained for."""
CONFIG = "config.json"


def checkpoints_in(directory: Path) -> Path:
    """Where a run directory keeps its checkpoints."""
    return directory / "checkpoints"


def best_in(directory: Path) -> Path:
    """Where a run directory keeps the parameters whose evaluation was best.

    Each one that is better has a number of its own, since a resumed run may come to a turn again.
    """
    return directory / "best"


def load_config(directory: Path, algorithm: Algorithm[Any] | None = None) -> Config:
    """The config of a run.

    If its preset was named with a module (``module:preset``), that module is imported first, since
    it may register the algorithm.

    Args:
      directory: a run directory.
      algorithm: the one given to ``train``, if it is not registered.

    Raises:
      ConfigError: this is not a run directory, its config is not valid here, or the module cannot
        be imported.
    """
    name, fields = read_fields(directory)
    try:
        plugins.resolve(str(fields.get("preset", "")))
        if algorithm is not None and algorithm.name == name:
            return build(algorithm.config_class, fields)
        return algorithms.from_fields(name, fields)
    except ConfigError as error:
        raise ConfigError(f"{directory / CONFIG} cannot be used: {error}") from error


def read_fields(directory: Path) -> tuple[str, dict[str, Any]]:
    """The name of the algorithm and the fields of the config in a run directory."""
    check_is_directory("the run directory", directory)
    path = directory / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"{directory} is not a run directory: it has no config.json. Give the directory "
            "that training had as its out, on the command line --out."
        )
    try:
        return fields_from_json(path.read_text())
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def has_checkpoints(directory: Path) -> bool:
    """Whether there is a complete checkpoint."""
    return bool(_complete(directory))


def checkpoint_turns(directory: Path) -> list[int]:
    """Turns behind each complete checkpoint of a run directory, in ascending order.

    Raises:
      ConfigError: there is no complete checkpoint.
    """
    turns = _complete(directory)
    if not turns:
        raise _without_checkpoint(directory)
    return turns


def _without_checkpoint(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} holds no complete checkpoint: remove it and train again, or give another "
        "directory."
    )


def _complete(directory: Path) -> list[int]:
    # Not by a ``Checkpointer``, which waits for the other hosts. While a checkpoint is incomplete,
    # Orbax adds a suffix to its name.
    return turns_in(checkpoints_in(directory))


def turns_in(directory: Path) -> list[int]:
    """The numbers that are names in a folder, in ascending order."""
    names = [path.name for path in directory.glob("*")]
    return sorted(int(name) for name in names if name.isdigit())


def check_resumable(config: Config, algorithm: str) -> None:
    """Check that ``config`` can continue the run in its directory, if that has steps left to do.

    Raises:
      ConfigError: its checkpoints are gone; or its algorithm, network, environment or optimizer is
        another one.
    """
    assert config.out is not None
    name, fields = read_fields(config.out)
    if name != algorithm:
        raise ConfigError(
            f"{config.out} was trained with {name} and cannot be resumed with {algorithm}: choose "
            f"the preset that wrote it ({fields.get('preset')})."
        )
    saved = build(type(config), fields)
    before, now = _shaping(saved), _shaping(config)
    for name in before:
        if before[name] != now[name]:
            raise ConfigError(
                f"{config.out} was trained with {name} = {before[name]}, not {now[name]}: a "
                "resumed run keeps its network, environment and optimizer. Leave it as it "
                "was, or set out to another directory, on the command line with --out."
            )
    # A run that was killed before its first checkpoint begins anew. Where it has metrics but not
    # even their folder, they may be on a disk that is not mounted: the metrics must stay.
    metrics = config.out / FILE_NAME
    has_rows = metrics.is_file() and metrics.stat().st_size > 0
    if has_rows and not checkpoints_in(config.out).is_dir():
        raise _without_checkpoint(config.out)


def _shaping(config: Config) -> dict[str, Any]:
    """The fields in ``_SHAPING``, with those of groups under dotted names, "network.torso"."""
    fields = flat(dataclasses.asdict(config))
    chosen = {name for name in fields if name in _SHAPING or name.startswith("network.")}
    return {name: fields[name] for name in sorted(chosen)}


def check_unfinished(checkpoints: Checkpointer, config: Config) -> None:
    """Check that the run in the directory has steps left to do.

    Raises:
      ConfigError: it has none.
    """
    for turn in reversed(checkpoints.turns()):
        try:
            steps = checkpoints.counts(turn)["steps"]
        except DamagedError:
            continue  # If this is so of all, ``restore`` says it.
        if steps >= config.total_steps:
            raise ConfigError(
                f"total_steps is {config.total_steps}, but the run in {config.out} has done "
                f"{steps:.0f} steps: there is nothing to resume. Set total_steps to "
                "more, on the command line with --total-steps."
            )
        return
