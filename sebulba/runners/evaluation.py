"""Evaluation: the true returns of a trained agent."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sebulba import algorithms
from sebulba.algorithms import Algorithm
from sebulba.envs.contract import TimestepCheck
from sebulba.inference import EpisodeTracker
from sebulba.rundir.checkpoint import Checkpointer, DamagedError
from sebulba.rundir.reading import checkpoint_turns, checkpoints_in, load_config
from sebulba.runners.environments import default_make_env, probe, with_last_action
from sebulba.types import Agent, MakeEnv, Params
from sebulba.validation import ConfigError

MAX_ENVS = 32
"""Environments that are stepped together."""
PATIENCE = 120_000
"""Steps of an episode after which a warning says that evaluation waits for its end: more than half
an hour of an Atari game has, even without skipped frames."""
_READS = 100
"""How many checkpoints to try, each of which a run in progress may remove meanwhile."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of whole episodes.

    Attributes:
      returns: ``[episodes]``, sums of the true rewards, neither clipped nor discounted.
      lengths: ``[episodes]``, in agent steps.
      update: updates behind the parameters; None if they did not come from a checkpoint.
    """

    returns: np.ndarray
    lengths: np.ndarray
    update: int | None = None

    def summary(self) -> dict[str, float]:
        """Mean, its standard error, median, minimum and maximum of the return; the mean length."""
        count = len(self.returns)
        error = self.returns.std(ddof=1) / np.sqrt(count) if count > 1 else float("nan")
        return {
            "episodes": count,
            "mean": float(self.returns.mean()),
            "standard_error": float(error),
            "median": float(np.median(self.returns)),
            "minimum": float(self.returns.min()),
            "maximum": float(self.returns.max()),
            "length_mean": float(self.lengths.mean()),
        }


def evaluate_run(
    directory: Path | str,
    episodes: int = 100,
    *,
    greedy: bool = False,
    seed: int = 0,
    checkpoint: int | None = None,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    algorithm: Algorithm[Any] | None = None,
) -> Evaluation:
    """Evaluate a checkpoint of a run directory.

    Args:
      directory: the run directory.
      episodes: number of whole episodes to play.
      greedy: always take the best action.
      seed: of environments and actions.
      checkpoint: name of a checkpoint, the number of turns behind it; None takes the newest.
      make_env: the one given to ``train``, if any.
      agent: the one given to ``train``, if any.
      algorithm: the one given to ``train``, if any.

    Raises:
      ConfigError: this is not a run directory, it holds no such checkpoint, an argument is out of
        range, or both ``greedy`` and ``agent`` are given: only the agent knows how it acts.
    """
    _check(episodes, seed)
    directory = Path(directory).expanduser()
    config = load_config(directory, algorithm)
    _choose(directory, checkpoint)  # Refused before anything is made.
    if make_env is None:
        make_env = default_make_env(config)
    elif agent is None:
        make_env = with_last_action(config, make_env)
    if agent is None:
        acts: algorithms.Acts = "greedily" if greedy else "evaluating"
        algorithm = algorithm or algorithms.of(config)
        agent = algorithm.make_agent(config, probe(make_env), acts)
    elif greedy:
        raise ConfigError(
            f"greedy is True, but {type(agent).__name__} chooses its actions itself: give an agent "
            "that takes the best one."
        )
    # Read before the episodes are played: a run in progress may remove the checkpoint meanwhile.
    params, update = _read(directory, checkpoint, _shapes(agent))
    result = evaluate(agent, params, make_env, episodes, seed=seed)
    return dataclasses.replace(result, update=update)


def _choose(directory: Path, checkpoint: int | None) -> int:
    """The turn of a checkpoint that is there; the newest if ``checkpoint`` is None."""
    turns = checkpoint_turns(directory)
    turn = turns[-1] if checkpoint is None else checkpoint
    if turn not in turns:
        raise ConfigError(
            f"{directory} holds no checkpoint {turn}: it must be one of {turns}. Set --checkpoint."
        )
    return turn


def _read(directory: Path, checkpoint: int | None, shapes: Params) -> tuple[Params, int]:
    """The parameters of a checkpoint, and the updates behind them."""
    for _ in range(_READS):
        turn = _choose(directory, checkpoint)
        try:
            with Checkpointer(checkpoints_in(directory)) as checkpoints:
                params = checkpoints.restore_params(turn, shapes)
                return params, int(checkpoints.counts(turn)["updates"])
        except DamagedError as error:
            # A run in progress removes an older one while it is read, once there is a newer one.
            if _choose(directory, checkpoint) == turn:
                older = [other for other in checkpoint_turns(directory) if other < turn]
                remedy = f"an older one is there: --checkpoint {older[-1]}" if older else ""
                raise ConfigError(f"{error}: {remedy or 'there is no older one'}.") from error
    raise ConfigError(
        f"a run in progress has removed each of {_READS} checkpoints in {directory} while it was "
        "read: wait until it has ended, or let it keep more with --checkpoint.max-to-keep."
    )


def evaluate(
    agent: Agent, params: Params, make_env: MakeEnv, episodes: int = 100, *, seed: int = 0
) -> Evaluation:
    """Play ``episodes`` whole episodes.

    Each environment plays an equal share of them. Taking the first episodes to end instead would
    favor short ones. A warning says so if the end of an episode does not come.

    Args:
      agent: acts.
      params: its parameters.
      make_env: ``make_env(num_envs, seed)``, called once.
      episodes: number of whole episodes to play.
      seed: of environments and actions.

    Raises:
      ConfigError: ``episodes`` or ``seed`` is out of range, or the environments return what they
        should not.
    """
    _check(episodes, seed)
    num_envs = min(episodes, MAX_ENVS)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1  # The first environments play what is left over.
    act = jax.jit(agent.act)
    key = jax.random.key(seed)
    env = make_env(num_envs, seed)
    ended: list[tuple[float, int]] = []
    try:
        # As many as were asked for, whatever the environment's own spec says.
        check = TimestepCheck(env.spec._replace(num_envs=num_envs))
        timestep = env.reset()
        check.reset(timestep)
        tracker = EpisodeTracker(timestep)
        state = agent.initial_state(num_envs)
        warned = False
        while quota.any():
            output, state = act(params, jax.random.fold_in(key, check.steps), timestep, state)
            timestep = env.step(np.asarray(output.action))
            check.step(timestep)
            tracker.update(timestep)
            # ``ended`` gives the episodes that ended in this step, in the order of environments.
            for index, episode in zip(np.flatnonzero(timestep.first), tracker.ended(), strict=True):
                # An environment that has played its share goes on until all have, but that does not
                # count.
                if quota[index]:
                    quota[index] -= 1
                    ended.append(episode)
            warned = warned or _warn_of_long_episodes(tracker.lengths, quota)
    finally:
        env.close()
    returns, lengths = zip(*ended, strict=True)
    return Evaluation(np.array(returns), np.array(lengths))


def _warn_of_long_episodes(lengths: np.ndarray, quota: np.ndarray) -> bool:
    """Warn of environments that may never play their ``quota``; returns whether there are any."""
    late = np.flatnonzero((lengths > PATIENCE) & (quota > 0)).tolist()
    if late:
        warnings.warn(
            f"no episode has ended in {PATIENCE} steps of environments {late}, and evaluation "
            "waits for that. Ctrl-C ends it. If episodes have no end, cut them off in the "
            "environment, and set first where a new one starts.",
            stacklevel=3,
        )
    return bool(late)


def _shapes(agent: Agent) -> Params:
    """Shapes of the parameters, on the default device; nothing is computed, or compiled for it."""
    key = jax.random.key(0)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=key.sharding),
        jax.eval_shape(agent.init, key),
    )


def _check(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}: it must be above 0. Set it with --episodes.")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed}: it must be from 0 to 2**32 - 1. Set it with --seed.")
