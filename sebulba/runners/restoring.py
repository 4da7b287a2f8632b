"""What a run directory has learned, ready to act."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from sebulba import algorithms
from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.rundir.checkpoint import Checkpointer, DamagedError
from sebulba.rundir.reading import (
    best_in,
    checkpoint_turns,
    checkpoints_in,
    load_config,
    turns_in,
)
from sebulba.runners.environments import bare_make_env, probe, with_last_action
from sebulba.types import Agent, MakeEnv, Params
from sebulba.validation import ConfigError

Checkpoint = int | Literal["best"] | None
"""The turns behind a checkpoint, the one whose evaluation was best, or None for the newest."""
_READS = 100
"""How many checkpoints to try, each of which a run in progress may remove meanwhile."""


class Restored(NamedTuple):
    """An agent of a run directory.

    Attributes:
      config: of the run.
      agent: acts.
      params: its parameters.
      make_env: makes the environments that it was trained in.
      update: updates behind the parameters.
    """

    config: Config
    agent: Agent
    params: Params
    make_env: MakeEnv
    update: int


def restore(
    directory: Path | str,
    *,
    checkpoint: Checkpoint,
    greedy: bool,
    make_env: MakeEnv | None,
    agent: Agent | None,
    algorithm: Algorithm[Any] | None,
) -> Restored:
    """Read a checkpoint of a run; see ``evaluate_run`` for the arguments and errors."""
    directory = Path(directory).expanduser()
    config = load_config(directory, algorithm)
    _choose(directory, checkpoint)  # Refused before anything is made.
    make_env = with_last_action(config, make_env or bare_make_env(config), agent)
    if agent is None:
        acts: algorithms.Acts = "greedily" if greedy else "evaluating"
        algorithm = algorithm or algorithms.of(config)
        agent = algorithm.make_agent(config, probe(make_env), acts)
    elif greedy:
        raise ConfigError(
            f"greedy is True, but {type(agent).__name__} chooses its actions itself: give an agent "
            "that takes the best one."
        )
    params, update = _read(directory, checkpoint, shapes(agent))
    return Restored(config, agent, params, make_env, update)


def shapes(agent: Agent) -> Params:
    """Shapes of the parameters, on the default device; nothing is computed, or compiled for it."""
    key = jax.random.key(0)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=key.sharding),
        jax.eval_shape(agent.init, key),
    )


def _choose(directory: Path, checkpoint: Checkpoint) -> int:
    """The name of a checkpoint that is there; the newest if ``checkpoint`` is None."""
    if checkpoint == "best":
        numbers = turns_in(best_in(directory))
        if not numbers:
            raise ConfigError(
                f"{directory} holds no best checkpoint: no evaluation during training has ended. "
                "Leave out checkpoint, or set evaluation.interval in training, on the command line "
                "with --evaluation.interval."
            )
        return numbers[-1]
    turns = checkpoint_turns(directory)
    turn = turns[-1] if checkpoint is None else checkpoint
    if turn not in turns:
        raise ConfigError(
            f"{directory} holds no checkpoint {turn!r}: it must be one of {turns}, or 'best'. Set "
            "checkpoint, on the command line with --checkpoint."
        )
    return turn


def _read(directory: Path, checkpoint: Checkpoint, shapes: Params) -> tuple[Params, int]:
    """The parameters of a checkpoint, and the updates behind them."""
    folder = (best_in if checkpoint == "best" else checkpoints_in)(directory)
    removed: FileNotFoundError | None = None
    for _ in range(_READS):
        name = _choose(directory, checkpoint)
        try:
            with Checkpointer(folder) as checkpoints:
                params = checkpoints.restore_params(name, shapes)
                return params, int(checkpoints.counts(name)["updates"])
        except FileNotFoundError as error:
            removed = error  # By a run in progress, while Orbax looked for what there is.
        except DamagedError as error:
            # A run in progress removes an older one while it is read, once there is a newer one.
            if _choose(directory, checkpoint) == name:
                raise ConfigError(f"{error}: {_remedy(directory, checkpoint, name)}.") from error
    raise ConfigError(
        f"a run in progress has removed each of {_READS} checkpoints in {directory} while it was "
        "read: wait until it has ended, or let it keep more. Set checkpoint.max_to_keep, on the "
        "command line with --checkpoint.max-to-keep."
    ) from removed


def _remedy(directory: Path, checkpoint: Checkpoint, name: int) -> str:
    """What to do where a checkpoint is damaged."""
    if checkpoint == "best":
        return "leave out checkpoint, and the newest is taken"
    older = [turn for turn in checkpoint_turns(directory) if turn < name]
    if not older:
        return "there is no older one"
    return (
        f"an older one is there. Set checkpoint to {older[-1]}, on the command line with "
        f"--checkpoint {older[-1]}"
    )
