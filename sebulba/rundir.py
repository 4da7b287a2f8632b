"""The run directory: config.json, metrics.jsonl, TensorBoard files, checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sebulba.algorithms import CONFIGS
from sebulba.checkpoint import Checkpointer, Counts
from sebulba.config import Config, ConfigError, from_json, to_json
from sebulba.metrics import MetricsWriter

_SHAPING = ("env", "env_options", "atari_protocol", "network")
"""Config fields that a resumed run cannot change: parameters depend on them."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """What a run writes to; both are None where there is no directory."""

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
            if not config.resume:
                _make(config.out)
            _write_atomically(config.out / "config.json", to_json(config))
            checkpoints = Checkpointer(checkpoints_in(config.out), config.checkpoint.keep)
            metrics = MetricsWriter(config.out, resumed)
        with metrics:
            yield cls(checkpoints, metrics)

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
    return from_json(path.read_text(), CONFIGS)


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
    for name in _SHAPING:
        before, now = getattr(saved, name), getattr(config, name)
        if before != now:
            raise ConfigError(
                f"{config.out} was trained with {name} = {before}, not {now}: a resumed run keeps "
                "its network and environment. Drop that option, or train in another --out."
            )
    return last_checkpoint(config.out)


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
