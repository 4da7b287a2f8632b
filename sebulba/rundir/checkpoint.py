"""Checkpoints, written by Orbax: asynchronously, and atomically by renaming."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from sebulba.rundir import contents
from sebulba.types import Params
from sebulba.validation import ConfigError

# In every write it says that it misses the files of a format that we do not use.
logging.getLogger("absl").addFilter(
    lambda record: (
        not str(record.msg).endswith("per-process OCDBT checkpoint subdirs found in %s, ")
    )
)

Counts = dict[str, float]
"""Numbers of the run so far: updates, steps, episodes, seconds."""


class DamagedError(ConfigError):
    """A checkpoint that cannot be read, or is not what was written."""


_FILES = tensorstore.Context()
"""Where TensorStore's threads for files belong: as many as there are cores, and 4 at least.

Orbax makes up to 128 of them for each checkpoint, and the heaps that the C library gives to threads
fill up one after the other, with memory that is free again, but is not given back.
"""


class _NumpyHandler(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]  # Orbax has no types.
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for info in infos:
            info.ts_context = _FILES
        return await super().serialize(values, infos, args)


class _ArrayHandler(ocp.type_handlers.ArrayHandler):  # type: ignore[misc]  # Orbax has no types.
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for info in infos:
            info.ts_context = _FILES
        return await super().serialize(values, infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return await _all(super().deserialize(infos, args))

    async def metadata(self, infos: Any) -> Any:
        return await _all(super().metadata(infos))


async def _all(reads: Coroutine[Any, Any, Any]) -> Any:
    """Wait for all arrays, also where one cannot be read.

    Orbax closes the event loop as soon as one fails. For each array that is still being read then,
    Python, its logger or TensorStore's threads would print that nobody waits for it.
    """
    before = asyncio.all_tasks()
    try:
        return await reads
    except Exception:
        while left := asyncio.all_tasks() - before:
            await asyncio.gather(*left, return_exceptions=True)
        raise


_TYPES = ocp.type_handlers.create_type_handler_registry(
    (np.ndarray, _NumpyHandler()), (jax.Array, _ArrayHandler())
)


class Checkpointer:
    """The checkpoints of one run, each named by the number of turns behind it.

    With several hosts, all of them must construct it and make the same calls: Orbax waits for all.
    A context manager, which closes it.
    """

    def __init__(self, directory: Path, max_to_keep: int = 1, alone: bool = False) -> None:
        """Older checkpoints than the newest ``max_to_keep`` are removed when one is written.

        With ``alone``, host 0 is the only one that makes calls.
        """
        self._directory = directory
        hosts = ocp.options.MultiprocessingOptions()
        if alone:  # Orbax then does not make the directory.
            directory.mkdir(exist_ok=True)
            hosts = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
        self._is_writing = False
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            item_handlers={
                # A file for each array takes somewhat longer to write than one common file,
                # TensorStore's format OCDBT. But that would leave 30 KiB behind each time: what
                # TensorStore turns from JSON into Python, here the place of each array, is never
                # freed.
                "arrays": ocp.PyTreeCheckpointHandler(
                    use_ocdbt=False, type_handler_registry=_TYPES, multiprocessing_options=hosts
                ),
                "counts": ocp.JsonCheckpointHandler(multiprocessing_options=hosts),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=max_to_keep,
                create=not alone,
                multiprocessing_options=hosts,
                # Asynchronously, a directory that cannot be created would only be noticed when the
                # threads that wait for it time out.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
        )

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error here must not hide the one that came first.
        with contextlib.suppress(Exception) if kind is not None else contextlib.nullcontext():
            self.close()

    def latest(self) -> int | None:
        """Turns behind the newest complete checkpoint; None if there is none."""
        return self._manager.latest_step()

    def turns(self) -> list[int]:
        """Turns behind each complete checkpoint, in ascending order."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        turn: int,
        state: Any,
        params: Params,
        counts: Counts,
        previous: Params | None = None,
    ) -> None:
        """Start writing a checkpoint; the arrays may be donated once this returns.

        If writing fails, a later call of ``save``, ``check`` or ``close`` raises the error.

        Args:
          turn: name of the checkpoint.
          state: the learner's whole state.
          params: the parameters in it, which are written a second time by themselves, so that they
            can be read without the learner.
          counts: written as JSON.
          previous: NumPy arrays, the parameters of the turn before, where actors still need them.
        """
        # The last turn of a run may be one of the regular checkpoints, and Orbax refuses to save a
        # step twice.
        if turn == self.latest():
            return
        # The learner donates its state to the next update while this one is still being written.
        trees = {"state": state, "params": params}
        arrays, sums = _copy(trees)
        if previous is not None:
            trees["previous"] = arrays["previous"] = previous
            sums["previous"] = contents.checksums(previous)
        of_items = {
            name: contents.describe(tree, np.asarray(sums[name])) for name, tree in trees.items()
        }
        self._write(turn, arrays, {"counts": counts, **of_items})

    def save_params(self, number: int, params: Params, counts: Counts) -> None:
        """Start writing a checkpoint that is not of a turn, of ``params`` in NumPy arrays alone."""
        contents_of = {"params": contents.describe(params, np.asarray(contents.checksums(params)))}
        self._write(number, {"params": params}, {"counts": counts, **contents_of})

    def _write(self, name: int, arrays: dict[str, Any], record: dict[str, Any]) -> None:
        self._is_writing = True
        self._manager.save(
            name,
            args=ocp.args.Composite(
                # One item, since TensorStore keeps some memory for each that is ever written.
                arrays=ocp.args.PyTreeSave(arrays),
                counts=ocp.args.JsonSave({**record, "digest": contents.digest(record)}),
            ),
        )

    def restore(self, turn: int, state: Any, params: Params) -> tuple[Any, Counts, Params | None]:
        """State, counts and the previous parameters, if it has them, of one checkpoint.

        Args:
          turn: name of the checkpoint.
          state: gives shapes and shardings.
          params: those in ``state``, which do the same for the previous ones.

        Raises:
          DamagedError: it cannot be read, or is not what was written.
          ConfigError: its arrays have other names, shapes or types.
        """
        record = self._record(turn)
        restored = self._arrays(turn, "state", record, state)
        kept = "previous" in record
        previous = self._arrays(turn, "previous", record, params) if kept else None
        return restored, dict(record["counts"]), previous

    def counts(self, turn: int) -> Counts:
        """The counts of one checkpoint, without reading its arrays.

        Raises:
          DamagedError: they cannot be read, or are not what was written.
        """
        return dict(self._record(turn)["counts"])

    def restore_params(self, turn: int, params: Params) -> Params:
        """The parameters of one checkpoint; ``params`` gives shapes and shardings.

        Raises:
          DamagedError: it cannot be read, or is not what was written.
          ConfigError: its arrays have other names, shapes or types.
        """
        return self._arrays(turn, "params", self._record(turn), params)

    def _record(self, turn: int) -> dict[str, Any]:
        """The counts of a checkpoint, and what it says of its arrays."""
        with self._reading(turn):
            args = ocp.args.Composite(counts=ocp.args.JsonRestore())
            record = dict(self._manager.restore(turn, args=args)["counts"])
            if record.pop("digest") != contents.digest(record):
                raise ValueError("its counts are not what was written")
        return record

    def _arrays(self, turn: int, item: str, record: dict[str, Any], tree: Any) -> Any:
        if found := contents.differences(record[item], tree):
            raise ConfigError(
                f"checkpoint {turn} in {self._directory} does not fit this config's network and "
                f"optimizer: {found}. Use the config, agent and optimizer that wrote it."
            )
        with self._reading(turn):
            template = {item: self._in_written_form(turn, item, tree)}
            arrays = ocp.args.PyTreeRestore(
                template,
                restore_args=ocp.checkpoint_utils.construct_restore_args(template),
                partial_restore=True,
            )
            args = ocp.args.Composite(arrays=arrays)
            data = contents.named(self._manager.restore(turn, args=args)["arrays"][item])
            restored = jax.tree_util.tree_map_with_path(
                lambda path, leaf: _as_keys(leaf, data[contents.name(path)]), tree
            )
            if changed := contents.changed(record[item], restored):
                raise ValueError(f"{', '.join(changed)}: not what was written")
        return restored

    def _in_written_form(self, turn: int, item: str, tree: Any) -> Any:
        """Shapes and shardings of ``tree``, whose arrays have the names of those that were written.

        Parts without arrays may differ, as those of an optimizer that has one step more or less:
        Orbax would refuse them.
        """
        leaves = contents.named(tree)
        written = self._manager.item_metadata(turn)["arrays"].tree[item]
        return jax.tree_util.tree_map_with_path(
            lambda path, _: _abstract(leaves[contents.name(path)]), written
        )

    @contextlib.contextmanager
    def _reading(self, turn: int) -> Iterator[None]:
        """Turn what is raised for files that are missing, cut short or changed into one error."""
        try:
            yield
        except (ConfigError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:  # Orbax raises many kinds, and plain ones.
            cause = error.__cause__ or error
            why = (str(cause) or type(cause).__name__).splitlines()[0]
            raise DamagedError(
                f"checkpoint {turn} in {self._directory} is damaged or incomplete ({why})"
            ) from error

    def reload(self) -> None:
        """Look at the directory again, after something else has changed it."""
        self._manager.reload()

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
def _copy(trees: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Copies on the same devices, all arrays in one call, and the checksums of each tree."""
    copies = jax.tree.map(lambda leaf: jnp.copy(contents.data(leaf)), trees)
    return copies, {name: contents.checksums(tree) for name, tree in trees.items()}


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    data = jax.eval_shape(contents.data, leaf)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding)


def _as_keys(leaf: Any, data: jax.Array) -> jax.Array:
    """What was read in the place of ``leaf``: random keys are written as their data."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return data
    impl = jax.random.key_impl(jnp.empty(0, leaf.dtype))  # ``leaf`` may be a shape and type alone.
    return jax.random.wrap_key_data(data, impl=impl)
