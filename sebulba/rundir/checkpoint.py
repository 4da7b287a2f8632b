"""Checkpoints, written by Orbax: asynchronously, and atomically by renaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from sebulba.types import Params
from sebulba.validation import ConfigError

Counts = dict[str, float]
"""Numbers of the run so far: updates, steps, episodes, seconds."""


class Checkpointer:
    """The checkpoints of one run, each named by the number of turns behind it.

    With several hosts, all of them must construct it and make the same calls: Orbax waits for all.
    """

    def __init__(self, directory: Path, max_to_keep: int = 1) -> None:
        """Older checkpoints than the newest ``max_to_keep`` are removed when one is written."""
        self._directory = directory
        self._is_writing = False
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=max_to_keep,
                create=True,
                # Asynchronously, a directory that cannot be created would only be noticed when the
                # threads that wait for it time out.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
        )

    def latest(self) -> int | None:
        """Turns behind the newest complete checkpoint; None if there is none."""
        return self._manager.latest_step()

    def turns(self) -> list[int]:
        """Turns behind each complete checkpoint, in ascending order."""
        return sorted(self._manager.all_steps())

    def save(self, turn: int, state: Any, params: Params, counts: Counts) -> None:
        """Start writing a checkpoint; the arrays may be donated once this returns.

        If writing fails, a later call of ``save``, ``check`` or ``close`` raises the error.

        Args:
          turn: name of the checkpoint.
          state: the learner's whole state.
          params: the parameters in it, which are written a second time by themselves, so that they
            can be read without the learner.
          counts: written as JSON.
        """
        # The last turn of a run may be one of the regular checkpoints, and Orbax refuses to save a
        # step twice.
        if turn == self.latest():
            return
        # The learner donates its state to the next update while this one is still being written.
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
        """State and counts of one checkpoint; ``state`` gives shapes and shardings.

        Raises:
          ConfigError: the checkpoint is incomplete, or its arrays have other names or shapes.
        """
        restored = self._restore(
            turn,
            state=ocp.args.StandardRestore(jax.tree.map(_abstract, state)),
            counts=ocp.args.JsonRestore(),
        )
        return restored["state"], dict(restored["counts"])

    def counts(self, turn: int) -> Counts:
        """The counts of one checkpoint, without reading its arrays."""
        return dict(self._restore(turn, counts=ocp.args.JsonRestore())["counts"])

    def restore_params(self, turn: int, params: Params) -> Params:
        """The parameters of one checkpoint; ``params`` gives shapes and shardings.

        Raises:
          ConfigError: the checkpoint is incomplete, or its arrays have other names or shapes.
        """
        template = ocp.args.StandardRestore(jax.tree.map(_abstract, params))
        return self._restore(turn, params=template)["params"]

    def _restore(self, turn: int, **items: Any) -> Any:
        try:
            return self._manager.restore(turn, args=ocp.args.Composite(**items))
        except FileNotFoundError as error:
            raise ConfigError(
                f"checkpoint {turn} in {self._directory} is gone or incomplete ({error}): a run "
                "in progress removes older ones. Try again, or remove it and use the one before."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"checkpoint {turn} in {self._directory} does not fit this config's network and "
                "optimizer: use the config that wrote it. If this is that config, the checkpoint "
                f"is damaged ({str(error).splitlines()[0]}): remove it and use the one before."
            ) from error

    def check(self) -> None:
        """Raise the error of a write that has failed, if any; does not wait for one in progress."""
        # Not by Orbax's check_for_errors: an error is reported there only once. Usually Orbax's own
        # thread takes it first, and nothing is left to see here. If this call takes it first, that
        # thread knows of no failure, and deletes an older checkpoint in favor of the failed one.
        if self._is_writing and not self._manager.is_saving_in_progress():
            self._is_writing = False
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for the last write to be complete, and raise the error that stopped it, if any."""
        try:
            self._manager.wait_until_finished()
        finally:
            self._manager.close()


@jax.jit
def _copy(state: Any) -> Any:
    """A copy on the same devices, all arrays in one call."""
    return jax.tree.map(jnp.copy, state)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
