"""What every learner is."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from sebulba.types import Params, Trajectory, Unroll

Logs = dict[str, jax.Array]
"""Scalars by name."""


class Learner(abc.ABC):
    """The learning half of an algorithm: inherit from it, and define the four abstract methods.

    All methods are called by one thread, in the same order on every host. The other methods have
    defaults, for a learner that keeps nothing but its state.
    """

    @abc.abstractmethod
    def init(self, key: jax.Array) -> Any:
        """The first state: a pytree with a copy of everything on every learner device."""

    @abc.abstractmethod
    def params(self, state: Any) -> Params:
        """The parameters in ``state`` that actors should use."""

    @abc.abstractmethod
    def add(self, unrolls: Sequence[Unroll]) -> int:
        """Take in the unrolls of one turn; returns how many updates are due.

        The number must depend on counts alone, never on time, so that all hosts agree on it.
        """

    @abc.abstractmethod
    def update(self, state: Any) -> tuple[Any, Logs]:
        """One update: the next state, and logs. ``state`` is donated."""

    def prepare(self) -> str | None:
        """Allocate what is kept beside the state, such as a replay; a line to print about it.

        Called once, before training starts and before anything is written.

        Raises:
          ConfigError: memory is short.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """More numbers for a row of metrics, of this host; counted, not measured on a device."""
        return {}

    def save_replay(self, path: Path) -> None:
        """Start writing what is kept beside the state to the directory ``path``."""
        return None

    def load_replay(self, path: Path) -> str | None:
        """Read what ``save_replay`` wrote; a line to print where that was not possible."""
        return None

    def close(self) -> None:
        """Wait for what is being written."""
        return None

    def lower(self, state: Any, shard: Trajectory) -> list[tuple[jax.stages.Lowered, int]]:
        """The programs of one update and how often each runs, for ``sebulba plan``.

        Nothing is computed; the devices need not exist.

        Args:
          state: what ``init`` returns, as ``jax.ShapeDtypeStruct`` with shardings.
          shard: ``jax.ShapeDtypeStruct`` of one learner device's share of an unroll.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to lower its update")

    def device_memory(self) -> int:
        """Bytes kept on each learner device beside the state."""
        return 0
