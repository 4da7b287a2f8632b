"""The interface that every learner implements."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from sebulba.types import Histogram, Params, Trajectory, Unroll

Logs = dict[str, jax.Array]
"""Scalars by name."""


class Upkeep(NamedTuple):
    """What a learner does besides its updates, and keeps besides its state, for ``sebulba plan``.

    Attributes:
      gathered: bytes that a host gathers from its memory for each update, and sends to its devices.
      stored: bytes that a host fetches from its devices for each update, and stores in its memory.
      programs: what runs on each learner device besides the update, and how often for each update.
        What the learner keeps there is among their arguments.
    """

    gathered: float = 0.0
    stored: float = 0.0
    programs: Sequence[tuple[jax.stages.Lowered, float]] = ()


class Learner(abc.ABC):
    """The learning half of an algorithm: inherit from it and define the four abstract methods.

    One thread calls all methods, in the same order on every host. The other methods have defaults
    that suit a learner that keeps nothing besides its state.
    """

    # The order must be shared because updates communicate: two hosts that started their collective
    # operations in different orders would wait for each other forever.

    @abc.abstractmethod
    def init(self, key: jax.Array) -> Any:
        """The initial state: a pytree of arrays, each replicated on every learner device."""

    @abc.abstractmethod
    def params(self, state: Any) -> Params:
        """The part of ``state`` that actors should act with."""

    @abc.abstractmethod
    def add(self, unrolls: Sequence[Unroll]) -> int:
        """Take in the unrolls of one turn; returns how many updates are due now.

        The number must depend on counts alone, never on timing, so that all hosts agree on it.
        """

    @abc.abstractmethod
    def update(self, state: Any, progress: float) -> tuple[Any, Logs]:
        """One update: returns the next state and scalars to log. ``state`` is donated.

        Logs have names that no row of metrics has already, such as ``steps``.

        Args:
          state: as ``init`` or the last update returned it.
          progress: share of ``total_steps`` that is done, from 0 to 1 and the same on all hosts.
            For what changes during training, such as a learning rate that decays.
        """

    def prepare(self) -> str | None:
        """Allocate what the learner keeps besides its state, such as a replay.

        Called once, before training starts and before anything is written to disk.

        Returns:
          A line about it to print, or None.

        Raises:
          ConfigError: there is not enough memory.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """More numbers for a row of metrics, about this host; they should not wait for a device."""
        return {}

    def histograms(self) -> dict[str, Histogram]:
        """Histograms to show beside a row of metrics in TensorBoard; only the primary host asks.

        They should not wait for a device.
        """
        return {}

    def save_replay(self, path: Path) -> None:
        """Start writing what the learner keeps besides its state to the directory ``path``.

        The directory must have this name only when it is complete. Those of earlier turns beside it
        are removed once it and the checkpoint of its turn are.
        """
        return None

    def load_replay(self, path: Path) -> str | None:
        """Read what ``save_replay`` wrote; returns a line to print if that was not possible."""
        return None

    def close(self) -> None:
        """Wait until everything is written."""
        return None

    def lower(self, state: Any, shard: Trajectory) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each of them runs, for ``sebulba plan``.

        Nothing is computed, and the devices need not exist. XLA counts what a program does in a
        loop once, so what the loop repeats is to be listed too.

        Args:
          state: what ``init`` returns, as ``jax.ShapeDtypeStruct`` with shardings.
          shard: one learner device's share of an unroll, as ``jax.ShapeDtypeStruct``.

        Raises:
          NotImplementedError: the learner does not define it, so it cannot be planned.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to lower its update")

    def upkeep(self) -> Upkeep:
        """What the learner does and keeps besides, such as a replay, for ``sebulba plan``."""
        return Upkeep()
