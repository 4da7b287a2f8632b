"""A trained agent by itself: it takes observations and gives actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from sebulba.algorithms import Algorithm
from sebulba.envs.base import map_arrays, named_arrays
from sebulba.envs.previous_action import action_array, has_action, has_both
from sebulba.rundir import export
from sebulba.runners.environments import probe, with_dtypes_of_jax
from sebulba.runners.restoring import Checkpoint, restore
from sebulba.types import Agent, EnvSpec, MakeEnv, Params, Timestep
from sebulba.validation import ConfigError


class TrainedAgent:
    """Acts in one environment, or in several at once; ``sebulba.load`` returns it.

    It keeps what the network remembers: stacked frames, the state of an LSTM and the last action.

    Attributes:
      agent: says how it acts.
      params: its parameters.
      spec: the observations and actions that it was trained with.
    """

    def __init__(self, agent: Agent, params: Params, spec: EnvSpec, seed: int = 0) -> None:
        """An agent that acts with ``params``.

        Args:
          agent: says how it acts.
          params: its parameters.
          spec: of the environments it was trained in.
          seed: of the actions, where they are sampled.
        """
        self.agent = agent
        self.params = params
        self.spec = spec
        self._act = jax.jit(agent.act)
        self._key = jax.random.key(seed)
        self._steps = 0
        self._batch: int | None = None  # None: new episodes begin with the next observation.
        self._state: Any = None
        self._last_action: Any = None

    def reset(self) -> None:
        """Begin new episodes, of as many environments as the next observation has."""
        self._batch = None

    def act(self, observation: Any, reward: Any = 0.0, first: Any = False) -> Any:
        """The actions to take next.

        Args:
          observation: of one environment, as ``spec`` says (without the last action, which is kept
            here), or of B environments: ``[B, ...]``.
          reward: for the last action, a number or ``[B]``. Networks with an LSTM observe it.
          first: bool, a number or ``[B]``: whether a new episode begins with this observation.
            After ``reset``, one does in every environment.

        Returns:
          for one environment, an int or an array; otherwise an array ``[B, ...]``. Choices count
          from 0, as ``spec`` says: where those of a space of Gymnasium start elsewhere, add their
          start. Whole numbers of a large range are not rounded yet.

        Raises:
          ValueError: the observation has other shapes than ``spec``, or is of another number of
            environments than the last one, without a ``reset`` between them, or than ``reward`` or
            ``first``.
        """
        observed, is_one = self._batched(observation)
        batch = len(named_arrays(observed)[0][1])
        rewards = _of_each("reward", np.asarray(reward, np.float32), batch)
        starts = _of_each("first", np.asarray(first, bool), batch)
        begins = self._batch is None
        if begins:
            self._batch, self._state = batch, self.agent.initial_state(batch)
            action = action_array(self.spec.action)
            self._last_action = np.zeros((batch, *action.shape), action.dtype)
        elif batch != self._batch:
            raise ValueError(
                f"the observation is of {batch} environments, but the last one was of "
                f"{self._batch}: call reset() before their number changes."
            )
        timestep = Timestep(
            observation=None,
            reward=rewards,
            discount=np.ones(batch, np.float32),
            first=starts | begins,
        )
        timestep = timestep._replace(observation=self._with_action(observed, timestep.first))
        key = jax.random.fold_in(self._key, self._steps)
        output, self._state = self._act(self.params, key, timestep, self._state)
        self._steps += 1
        self._last_action = np.asarray(output.action)
        if not is_one:
            return self._last_action
        only = self._last_action[0]
        return int(only) if only.ndim == 0 else only

    def _batched(self, observation: Any) -> tuple[Any, bool]:
        """The observation with a batch axis and the dtypes of the spec; whether it had none."""
        told = self.spec.observation
        if self._adds_action(observation):
            told = told["observation"]
        try:
            arrays = map_arrays(
                lambda spec, array: np.asarray(array, spec.dtype), told, observation
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"the observation is not as {told}: it must be.") from error
        pairs = zip(named_arrays(told), named_arrays(arrays), strict=True)
        extra = {array.ndim - len(spec.shape) for (_, spec), (_, array) in pairs}
        for (name, spec), (_, array) in zip(named_arrays(told), named_arrays(arrays), strict=True):
            if extra not in ({0}, {1}) or array.shape[array.ndim - len(spec.shape) :] != spec.shape:
                raise ValueError(
                    f"the observation{name} has the shape {array.shape}: it must be {spec.shape}, "
                    f"or (B, {', '.join(map(str, spec.shape))}) of B environments."
                )
        is_one = extra == {0}
        return (map_arrays(lambda array: array[None], arrays) if is_one else arrays), is_one

    def _adds_action(self, observation: Any) -> bool:
        if not has_action(self.spec):
            return False
        # What the environment itself observes may have these names too.
        inside = has_both(self.spec.observation["observation"])
        has_it = has_both(observation) and (not inside or has_both(observation["observation"]))
        return not has_it

    def _with_action(self, observed: Any, first: np.ndarray) -> Any:
        if not self._adds_action(observed):
            return observed
        mask = first.reshape(-1, *[1] * (self._last_action.ndim - 1))
        return {"observation": observed, "last_action": np.where(mask, 0, self._last_action)}


def _of_each(name: str, given: np.ndarray, batch: int) -> np.ndarray:
    """A number for each environment, from one for all or as many."""
    if given.shape not in ((), (batch,)):
        raise ValueError(
            f"{name} has the shape {given.shape}: it must be a number, or ({batch},), one for each "
            "environment."
        )
    return np.broadcast_to(given, (batch,))


def load(
    directory: Path | str,
    *,
    greedy: bool = False,
    seed: int = 0,
    checkpoint: Checkpoint = None,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    algorithm: Algorithm[Any] | None = None,
) -> TrainedAgent:
    """The agent of an exported directory (``sebulba export``) or of a run directory.

    Of an export nothing but arrays and JSON is read: no code in it runs, and the environment need
    not be installed.

    Args:
      directory: where it is.
      greedy: always take the best action, instead of those that ``sebulba eval`` plays with.
      seed: of the actions.
      checkpoint: of a run directory, the number of turns behind it, or "best"; None takes the
        newest.
      make_env: the one given to ``train``, if any; of a run directory only.
      agent: the one given to ``train``, if any.
      algorithm: the one given to ``train``, if any.

    Raises:
      ConfigError: it is neither, it holds no such checkpoint, its files are damaged, or both
        ``greedy`` and ``agent`` are given.
    """
    directory = Path(directory).expanduser()
    if export.is_export(directory):
        if checkpoint is not None or make_env is not None:
            raise ConfigError(
                f"{directory} is an export: it holds one agent and its spec, so leave out "
                "checkpoint and make_env."
            )
        agent, params, spec = export.read(directory, greedy, agent, algorithm)
    else:
        restored = restore(
            directory,
            checkpoint=checkpoint,
            greedy=greedy,
            make_env=make_env,
            agent=agent,
            algorithm=algorithm,
        )
        agent, params = restored.agent, restored.params
        spec = probe(restored.make_env)
    return TrainedAgent(agent, params, with_dtypes_of_jax(spec), seed)
