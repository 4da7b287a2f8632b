"""Evaluation: the true returns of a trained agent."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sebulba.algorithms import Algorithm
from sebulba.envs.contract import TimestepCheck
from sebulba.inference import EpisodeTracker
from sebulba.runners.restoring import restore
from sebulba.types import Agent, MakeEnv, Params
from sebulba.validation import ConfigError

MAX_ENVS = 32
"""Environments that are stepped together."""
PATIENCE = 120_000
"""Steps of an episode after which a warning says that evaluation waits for its end: more than half
an hour of an Atari game has, even without skipped frames."""


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
    # Read before the episodes are played: a run in progress may remove the checkpoint meanwhile.
    restored = restore(
        directory,
        checkpoint=checkpoint,
        greedy=greedy,
        make_env=make_env,
        agent=agent,
        algorithm=algorithm,
    )
    agent, params, make_env = restored.agent, restored.params, restored.make_env
    result = evaluate(agent, params, make_env, episodes, seed=seed)
    return dataclasses.replace(result, update=restored.update)


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


def _check(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}: it must be above 0. Set it with --episodes.")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed}: it must be from 0 to 2**32 - 1. Set it with --seed.")
