"""Evaluation: the true returns of a trained agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sebulba.algorithms import Algorithm
from sebulba.envs.atari import MAX_FRAMES
from sebulba.envs.contract import TimestepCheck
from sebulba.envs.human_scores import human_normalized
from sebulba.inference import EpisodeTracker
from sebulba.runners.restoring import Checkpoint, restore
from sebulba.types import Agent, MakeEnv, Params
from sebulba.validation import ConfigError

MAX_ENVS = 32
"""Environments that are stepped together."""

OnStep = Callable[[int], None]
"""Called after each step with the number of episodes that have ended; what it raises ends all."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of whole episodes.

    Attributes:
      returns: ``[episodes]``, sums of the true rewards, neither clipped nor discounted.
      lengths: ``[episodes]``, in agent steps.
      update: updates behind the parameters; None if they did not come from a checkpoint.
      cut_off: episodes that were cut off, since they did not end within ``max_steps``.
      env: the id of the environment, as in ``Config.env``; "" if that is not known.
    """

    returns: np.ndarray
    lengths: np.ndarray
    update: int | None = None
    cut_off: int = 0
    env: str = ""

    def summary(self) -> dict[str, float]:
        """Mean, its standard error, median, minimum and maximum of the return; the mean length.

        Also how many episodes were cut off, if any, and in the games of Atari-57 the mean return
        as "human_normalized", where 0 is that of random actions and 1 that of a human.
        """
        count = len(self.returns)
        error = self.returns.std(ddof=1) / np.sqrt(count) if count > 1 else float("nan")
        mean = float(self.returns.mean())
        normalized = human_normalized(self.env, mean)
        return {
            "episodes": count,
            "mean": mean,
            **({} if normalized is None else {"human_normalized": normalized}),
            "standard_error": float(error),
            "median": float(np.median(self.returns)),
            "minimum": float(self.returns.min()),
            "maximum": float(self.returns.max()),
            "length_mean": float(self.lengths.mean()),
            **({"cut_off": self.cut_off} if self.cut_off else {}),
        }


def evaluate_run(
    directory: Path | str,
    episodes: int = 100,
    *,
    greedy: bool = False,
    seed: int = 0,
    checkpoint: Checkpoint = None,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
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
      checkpoint: name of a checkpoint, the number of turns behind it; "best" for the one whose
        evaluation during training was best; None for the newest.
      max_steps: steps after which an episode is cut off; see ``evaluate``.
      on_step: called after each step with the number of episodes that have ended.
      make_env: the one given to ``train``, if any.
      agent: the one given to ``train``, if any.
      algorithm: the one given to ``train``, if any.

    Raises:
      ConfigError: this is not a run directory, it holds no such checkpoint, an argument is out of
        range, or both ``greedy`` and ``agent`` are given: only the agent knows how it acts.
    """
    _check(episodes, seed, max_steps)
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
    evaluator = Evaluator(agent, make_env)
    result = evaluator.evaluate(params, episodes, seed, max_steps, on_step)
    return dataclasses.replace(result, update=restored.update, env=restored.config.env)


def evaluate(
    agent: Agent,
    params: Params,
    make_env: MakeEnv,
    episodes: int = 100,
    *,
    seed: int = 0,
    max_steps: int | None = None,
) -> Evaluation:
    """Play ``episodes`` whole episodes.

    Each environment plays an equal share of them. Taking the first episodes to end instead would
    favor short ones.

    Args:
      agent: acts.
      params: its parameters.
      make_env: ``make_env(num_envs, seed)``, called once, or again where episodes were cut off.
      episodes: number of whole episodes to play.
      seed: of environments and actions.
      max_steps: agent steps after which an episode is cut off. None takes as many as make 108,000
        frames (Machado et al. 2018): half an hour of an Atari game.

    Raises:
      ConfigError: ``episodes``, ``seed`` or ``max_steps`` is out of range, or the environments
        return what they should not.
    """
    _check(episodes, seed, max_steps)
    return Evaluator(agent, make_env).evaluate(params, episodes, seed, max_steps)


class Evaluator:
    """Evaluates parameters of one agent, again and again; ``evaluate`` and the run use it.

    Args:
      agent: acts.
      make_env: ``make_env(num_envs, seed)``.
    """

    def __init__(self, agent: Agent, make_env: MakeEnv) -> None:
        self._agent = agent
        self._make_env = make_env
        self._act = jax.jit(agent.act)  # Once: another one would be compiled again.

    def evaluate(
        self,
        params: Params,
        episodes: int,
        seed: int,
        max_steps: int | None = None,
        on_step: OnStep | None = None,
    ) -> Evaluation:
        """See ``sebulba.evaluate``; the result depends on ``params`` and ``seed`` alone."""
        ended: list[tuple[float, int]] = []
        cut_off = rounds = 0
        while len(ended) < episodes:
            # Environments reset themselves, and only at an end: in the place of those whose
            # episodes were cut off, new ones play what is left.
            of_round = np.random.SeedSequence([seed, rounds]).generate_state(1)[0] >> 1
            cut_off += self._play(
                params, episodes, int(of_round) if rounds else seed, max_steps, on_step, ended
            )
            rounds += 1
        returns, lengths = zip(*ended, strict=True)
        return Evaluation(np.array(returns), np.array(lengths), cut_off=cut_off)

    def _play(
        self,
        params: Params,
        episodes: int,
        seed: int,
        max_steps: int | None,
        on_step: OnStep | None,
        ended: list[tuple[float, int]],
    ) -> int:
        """Append to ``ended``, up to ``episodes``; returns how many episodes were cut off."""
        left = episodes - len(ended)
        num_envs = min(left, MAX_ENVS)
        quota = np.full(num_envs, left // num_envs)
        quota[: left % num_envs] += 1  # The first environments play what is left over.
        key = jax.random.key(seed)
        cut_off = 0
        env = self._make_env(num_envs, seed)
        try:
            # As many as were asked for, whatever the environment's own spec says.
            check = TimestepCheck(env.spec._replace(num_envs=num_envs))
            most = max_steps or MAX_FRAMES // env.spec.frame_skip
            timestep = env.reset()
            check.reset(timestep)
            tracker = EpisodeTracker(timestep)
            state = self._agent.initial_state(num_envs)
            while quota.any():
                step_key = jax.random.fold_in(key, check.steps)
                output, state = self._act(params, step_key, timestep, state)
                timestep = env.step(np.asarray(output.action))
                check.step(timestep)
                tracker.update(timestep)
                # Those that ended in this step, in the order of environments. An environment that
                # has played its share goes on until all have, but that does not count.
                firsts = np.flatnonzero(timestep.first)
                for index, episode in zip(firsts, tracker.ended(), strict=True):
                    if quota[index]:
                        quota[index] -= 1
                        ended.append(episode)
                # A step late, since the environment itself may end an episode of so many steps.
                for index in np.flatnonzero((tracker.lengths > most) & (quota > 0)):
                    quota[index] = 0
                    cut_off += 1
                    last = float(timestep.reward[index])
                    ended.append((float(tracker.returns[index]) - last, most))
                if on_step is not None:
                    on_step(len(ended))
        finally:
            env.close()
        return cut_off


def _check(episodes: int, seed: int, max_steps: int | None) -> None:
    if episodes < 1:
        raise ConfigError(
            f"episodes is {episodes}: it must be above 0. Set episodes, on the command line with "
            "--episodes."
        )
    if not 0 <= seed < 2**32:
        raise ConfigError(
            f"seed is {seed}: it must be from 0 to 2**32 - 1. Set seed, on the command line with "
            "--seed."
        )
    if max_steps is not None and max_steps < 1:
        raise ConfigError(
            f"max_steps is {max_steps}: it must be above 0, or None for 108,000 frames. Set "
            "max_steps, on the command line with --max-steps."
        )
