"""The run directory: config.json, metrics.jsonl, TensorBoard files, checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from sebulba.algorithms import CONFIGS
from sebulba.checkpoint import Checkpointer, Counts
from sebulba.config import Config, ConfigError, from_json, to_json
from sebulba.distributed import is_lead
from sebulba.metrics import MetricsWriter

_SHAPING = ("env", "env_options", "atari_protocol", "network", "optimiser.name")
"""Config fields that a resumed run cannot change: what a checkpoint holds depends on them."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """What a run writes to; all are None where there is no directory."""

    path: Path | None = None
    checkpoints: Checkpointer | None = None
    metrics: MetricsWriter | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, config: Config) -> Iterator[RunDirectory]:
        """Make the directory, or go on in it where ``config.resume``.

        Raises:
          ConfigError: it is in use, cannot be written, or holds nothing to resume. Nothing in it
            has changed then.
        """
        if config.out is None:
            if config.resume:
                raise ConfigError("resume needs a run directory: name it with --out DIR.")
            yield cls()
            return
        with _writable(config.out):
            resumed = check_resumable(config) if config.resume else None
            metrics = None
            if is_lead():
                if not config.resume:
                    _make(config.out)
                _write_atomically(config.out / "config.json", to_json(config))
                metrics = MetricsWriter(config.out, resumed)
            checkpoints = Checkpointer(checkpoints_in(config.out), config.checkpoint.keep)
        with metrics or contextlib.nullcontext():
            yield cls(config.out, checkpoints, metrics)

    def memory(self, updates: int) -> Path:
        """Where this host's learner keeps its memory (a replay) of a checkpoint."""
        assert self.path is not None
        return self.path / "replay" / f"host-{jax.process_index()}" / str(updates)

    def restore(self, state: Any) -> tuple[int, Any, Counts]:
        """Updates, state and counts of the last complete checkpoint."""
        assert self.checkpoints is not None
        updates = self.checkpoints.latest()
        assert updates is not None
        restored, counts = self.checkpoints.restore(updates, state)
        return updates, restored, counts


def checkpoints_in(directory: Path) -> Path:
    """Where a run directory keeps its checkpoints."""
    return directory / "checkpoints"


def load_config(directory: Path) -> Config:
    """The config of a run directory.

    Raises:
      ConfigError: it is none.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{directory} is not a run directory: it has no config.json. Give the directory "
            "that --out named when training."
        )
    try:
        return from_json(path.read_text(), CONFIGS)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def last_checkpoint(directory: Path) -> int:
    """Updates behind the last complete checkpoint of a run directory.

    Raises:
      ConfigError: there is none.
    """
    checkpoints = checkpoints_in(directory)
    latest = Checkpointer(checkpoints).latest() if checkpoints.is_dir() else None
    if latest is None:
        raise ConfigError(
            f"{directory} holds no complete checkpoint: train there first, without --resume, in "
            "an empty directory."
        )
    return latest


def check_resumable(config: Config) -> int:
    """Updates behind the checkpoint that ``config`` resumes.

    Raises:
      ConfigError: there is none, or it belongs to another network or environment.
    """
    assert config.out is not None
    saved = load_config(config.out)
    if type(saved) is not type(config):
        raise ConfigError(
            f"{config.out} was trained with {type(saved).__name__} and cannot be resumed with "
            f"{type(config).__name__}: choose the preset that wrote it ({saved.preset})."
        )
    before, now = _shaping(saved), _shaping(config)
    for name in before:
        if before[name] != now[name]:
            raise ConfigError(
                f"{config.out} was trained with {name} = {before[name]}, not {now[name]}: a "
                "resumed run keeps its network, environment and optimiser. Drop that option, or "
                "train in another --out."
            )
    return _unfinished(config.out, config.total_steps)


def _shaping(config: Config) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    fields |= {
        f"{group}.{name}": value
        for group, values in fields.items()
        if isinstance(values, dict) and group != "env_options"
        for name, value in values.items()
    }
    chosen = {name for name in fields if name in _SHAPING or name.startswith("network.")}
    return {name: fields[name] for name in sorted(chosen - {"network"})}


def _unfinished(directory: Path, total_steps: int) -> int:
    update = last_checkpoint(directory)
    steps = Checkpointer(checkpoints_in(directory)).counts(update)["steps"]
    if steps >= total_steps:
        raise ConfigError(
            f"total_steps is {total_steps}, but the run in {directory} has done {steps:.0f} "
            "steps: there is nothing to resume. Set the steps in all with --total-steps."
        )
    return update


@contextlib.contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write to the run directory {directory} ({error.strerror or error}): choose "
            "another with --out."
        ) from error


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigError(
            f"the run directory {directory} is not empty: nothing in it is overwritten. Choose "
            "another --out, or go on from its last checkpoint with --resume."
        )


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
