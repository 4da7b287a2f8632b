"""Checkpoints, written by Orbax: asynchronous, and atomic by renaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from sebulba.config import ConfigError

Counts = dict[str, float]
"""Numbers of the run that are not arrays: steps, episodes, seconds."""


class Checkpointer:
    """The checkpoints of one run, named by the number of updates behind them."""

    def __init__(self, directory: Path, keep: int = 1) -> None:
        """``directory`` is made when the first checkpoint is written."""
        self._directory = directory
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
        )

    def latest(self) -> int | None:
        """Updates behind the last complete checkpoint; None where there is none."""
        latest: int | None = self._manager.latest_step()
        return latest

    def save(self, updates: int, state: Any, counts: Counts) -> None:
        """Start writing; returns once the state has been copied.

        A failed write is raised by a later call of ``save``, ``check`` or ``close``.
        """
        if updates == self.latest():
            return
        # The learner donates its state to the next update, while this is still being written.
        copy = _copy(state)
        self._manager.save(
            updates,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(copy), counts=ocp.args.JsonSave(counts)
            ),
        )

    def restore(self, updates: int, state: Any) -> tuple[Any, Counts]:
        """State and counts of one checkpoint.

        ``state`` gives structure, shapes and placement: arrays or ``jax.ShapeDtypeStruct``.

        Raises:
          ConfigError: the checkpoint holds arrays of other names or shapes.
        """
        try:
            restored = self._manager.restore(
                updates,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(jax.tree.map(_abstract, state)),
                    counts=ocp.args.JsonRestore(),
                ),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the checkpoint of update {updates} in {self._directory} does not fit this "
                "config's network and optimiser: resume with the config that wrote it."
            ) from error
        return restored["state"], dict(restored["counts"])

    def check(self) -> None:
        """Raise what went wrong in writing, if anything did."""
        self._manager.check_for_errors()

    def close(self) -> None:
        """Wait for the last write to be complete, and raise what went wrong in it."""
        self._manager.wait_until_finished()
        self._manager.close()


@jax.jit
def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
