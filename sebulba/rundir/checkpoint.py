"""Checkpoints, written by Orbax: asynchronous, and atomic by renaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from sebulba.types import Params
from sebulba.validation import ConfigError

Counts = dict[str, float]
"""Numbers of the run that are not arrays: steps, episodes, seconds."""


class Checkpointer:
    """The checkpoints of one run, named by the number of turns behind them."""

    def __init__(self, directory: Path, max_to_keep: int = 1) -> None:
        """``directory`` is made when the first checkpoint is written."""
        self._directory = directory
        self._is_writing = False
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=max_to_keep,
                create=True,
                # Else a directory that cannot be made leaves threads that wait for it until
                # they time out, and the failure is known only then.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
        )

    def latest(self) -> int | None:
        """Turns behind the last complete checkpoint; None where there is none."""
        latest: int | None = self._manager.latest_step()
        return latest

    def turns(self) -> list[int]:
        """The turns of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def save(self, turn: int, state: Any, params: Params, counts: Counts) -> None:
        """Start writing; returns once the arrays have been copied.

        ``params``, which is part of ``state``, is written again by itself, so that it can be read
        without the learner. A failed write is raised by a later call of ``save``, ``check`` or
        ``close``.
        """
        if turn == self.latest():
            return
        # The learner donates its state to the next update, while this is still being written.
        copies = _copy((state, params))
        self._is_writing = True
        self._manager.save(
            turn,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(copies[0]),
                params=ocp.args.StandardSave(copies[1]),
                counts=ocp.args.JsonSave(counts),
            ),
        )

    def restore(self, turn: int, state: Any) -> tuple[Any, Counts]:
        """State and counts of one checkpoint; ``state`` gives shapes and placement.

        Raises:
          ConfigError: the checkpoint holds arrays of other names or shapes.
        """
        restored = self._restore(
            turn,
            state=ocp.args.StandardRestore(jax.tree.map(_abstract, state)),
            counts=ocp.args.JsonRestore(),
        )
        return restored["state"], dict(restored["counts"])

    def counts(self, turn: int) -> Counts:
        """The counts of one checkpoint alone."""
        return dict(self._restore(turn, counts=ocp.args.JsonRestore())["counts"])

    def restore_params(self, turn: int, params: Params) -> Params:
        """The parameters alone; ``params`` gives shapes and placement.

        Raises:
          ConfigError: the checkpoint holds arrays of other names or shapes.
        """
        template = ocp.args.StandardRestore(jax.tree.map(_abstract, params))
        return self._restore(turn, params=template)["params"]

    def _restore(self, turn: int, **items: Any) -> Any:
        try:
            return self._manager.restore(turn, args=ocp.args.Composite(**items))
        except FileNotFoundError as error:
            raise ConfigError(
                f"checkpoint {turn} in {self._directory} is gone or not whole ({error}): a run "
                "that trains removes older ones. Try again, or remove it and use the one before."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"checkpoint {turn} in {self._directory} does not fit this config's network and "
                "optimizer: use the config that wrote it. Where that did write it, it is damaged "
                f"({str(error).splitlines()[0]}): remove it and use the one before."
            ) from error

    def check(self) -> None:
        """Raise what went wrong in writing, if anything did; it does not wait."""
        # Orbax's own check looks where its thread has already taken the error from, or takes it
        # before that thread, which then removes an older checkpoint in favor of the failed one.
        if self._is_writing and not self._manager.is_saving_in_progress():
            self._is_writing = False
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for the last write to be complete, and raise what went wrong in it."""
        try:
            self._manager.wait_until_finished()
        finally:
            self._manager.close()


@jax.jit
def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
