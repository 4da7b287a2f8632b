"""Environments of Gymnasium (Towers et al., 2024) as ``sebulba.types.Env``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from sebulba.envs import spaces
from sebulba.envs.base import check_num_envs, map_arrays
from sebulba.types import EnvSpec, Timestep

Array = np.ndarray[Any, Any]


class GymnasiumEnv:
    """A batch of environments of Gymnasium, whatever their way to reset themselves.

    Termination is a discount of 0, truncation is none. Observations of float64 become float32,
    Discrete and MultiDiscrete ones become one-hot vectors, a Tuple becomes a dict with the keys
    "0", "1" and so on, and texts and empty arrays are left out.

    Args:
      make: an id that ``gymnasium.make`` takes, such as "LunarLander-v3" or "my_module:MyEnv-v0"; a
        function that returns a ``gymnasium.Env``; or a function ``make(num_envs=B)`` that returns a
        ``gymnasium.vector.VectorEnv``.
      num_envs: B, at least 1.
      seed: at least 0. The seed of each environment is drawn from it, or one for all of them where
        ``make`` returns another vector environment than a SyncVectorEnv or AsyncVectorEnv.
      options: keyword arguments of ``make``, such as ``max_episode_steps`` or ``frameskip``.
      processes: step each environment in a process of its own, with observations in shared memory.
        For slow environments: to send an action takes some 50 microseconds.

    Raises:
      ValueError: an argument is out of range, or the environments have spaces without a spec.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        num_envs: int,
        seed: int,
        options: Mapping[str, Any] | None = None,
        processes: bool = False,
    ) -> None:
        check_num_envs(num_envs)
        if seed < 0:
            raise ValueError(f"seed is {seed}, but it cannot be negative.")
        self._seeds = (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist()
        self._batches = _batches(make, num_envs, dict(options or {}), processes)
        first = self._batches[0].env
        self._action_space = first.single_action_space
        self._observation_space = first.single_observation_space
        self._spec = EnvSpec(
            spaces.observation_spec(self._observation_space),
            spaces.action_spec(self._action_space),
            num_envs,
        )

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Timestep:
        seeds = iter(self._seeds)
        return self._joined(
            [batch.reset([next(seeds) for _ in range(batch.num_envs)]) for batch in self._batches]
        )

    def step(self, action: Array) -> Timestep:
        native = spaces.native_action(self._action_space, action)
        parts = np.split(native, len(self._batches))
        return self._joined(
            [batch.step(part) for batch, part in zip(self._batches, parts, strict=True)]
        )

    def render(self) -> Array:
        """The first environment as a picture, uint8 ``[H, W, 3]``.

        Made with the option ``render_mode="rgb_array"``, Gymnasium's environments can draw it.
        """
        return np.asarray(self._batches[0].env.render()[0], np.uint8)

    def close(self) -> None:
        batches, self._batches = self._batches, []
        for batch in batches:
            batch.env.close()

    def _joined(self, parts: list[Timestep]) -> Timestep:
        """The timesteps of all batches as one, with observations as in the spec."""
        space, spec = self._observation_space, self._spec.observation
        parts = [
            part._replace(observation=spaces.observation(space, spec, part.observation))
            for part in parts
        ]
        if len(parts) == 1:
            return parts[0]
        return Timestep(
            map_arrays(lambda *arrays: np.concatenate(arrays), *(t.observation for t in parts)),
            *(np.concatenate(field) for field in list(zip(*parts, strict=True))[1:]),
        )


class _Batch:
    """A vector environment that resets an environment in the step after its end.

    Attributes:
      env: the ``gymnasium.vector.VectorEnv``.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.num_envs = int(env.num_envs)
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self, seeds: list[int]) -> Timestep:
        observation, _ = self.env.reset(seed=seeds if self._takes_seeds() else seeds[0])
        self._ended = np.zeros(self.num_envs, np.bool_)
        return _first(observation, self.num_envs)

    def _takes_seeds(self) -> bool:
        """Whether it takes a seed for each environment; any ``VectorEnv`` takes one for all."""
        from gymnasium import vector

        return isinstance(self.env.unwrapped, vector.SyncVectorEnv | vector.AsyncVectorEnv)

    def step(self, action: Array) -> Timestep:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        first, self._ended = self._ended, terminated | truncated
        return Timestep(
            observation,
            np.where(first, 0, reward).astype(np.float32),
            (~terminated).astype(np.float32),
            first,
        )


class _Held(_Batch):
    """A vector environment of one environment, which has reset before it should, or will not.

    Where all environments of a vector environment are stepped together, one that has reset cannot
    wait for a step, in which its first timestep is acted on. So each is in a batch of its own.
    """

    def __init__(self, env: Any, resets_in_same_step: bool) -> None:
        super().__init__(env)
        self._same_step = resets_in_same_step
        self._next: Any = None

    def step(self, action: Array) -> Timestep:
        if self._ended[0]:
            self._ended = np.zeros(1, np.bool_)
            return _first(self._next if self._same_step else self.env.reset()[0], 1)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._ended = terminated | truncated
        if self._ended[0] and self._same_step:
            self._next = observation
            observation = _batch_of_one(info["final_obs"][0])
        return Timestep(
            observation,
            np.asarray(reward, np.float32),
            (~terminated).astype(np.float32),
            np.zeros(1, np.bool_),
        )


def _first(observation: Any, num_envs: int) -> Timestep:
    ones = np.ones(num_envs, np.float32)
    return Timestep(observation, 0 * ones, ones, ones.astype(np.bool_))


def _batch_of_one(native: Any) -> Any:
    """The observation of one environment as that of a batch of one."""
    if isinstance(native, Mapping):
        return {name: _batch_of_one(part) for name, part in native.items()}
    if isinstance(native, tuple):
        return tuple(map(_batch_of_one, native))
    return np.asarray(native)[None]


def _batches(
    make: str | Callable[..., Any], num_envs: int, options: dict[str, Any], processes: bool
) -> list[_Batch]:
    """The environments in as few batches as their way to reset allows."""
    from gymnasium import vector

    if isinstance(make, str) or not _makes_batches(make):
        makers = [partial(_one, make, options)] * num_envs
        next_step = vector.AutoresetMode.NEXT_STEP
        if not processes:
            return [_Batch(vector.SyncVectorEnv(makers, autoreset_mode=next_step))]
        try:
            # Forked, they would have a copy of JAX's locks, perhaps held.
            context = "forkserver"
            return [
                _Batch(vector.AsyncVectorEnv(makers, context=context, autoreset_mode=next_step))
            ]
        except (ConnectionError, EOFError) as error:
            raise ValueError(
                f"the processes of the environments have not started ({error}). Each of them first "
                "imports the script that makes them: in it, put what trains below "
                "if __name__ == '__main__'. Or leave processes out."
            ) from error
    if processes:
        raise ValueError(
            "processes is True, but make returns a vector environment, which has its own way to "
            "step its environments: leave processes out, or return a gymnasium.Env."
        )
    mode = _mode(make(num_envs=1, **options))
    if mode is vector.AutoresetMode.NEXT_STEP:
        return [_Batch(make(num_envs=num_envs, **options))]
    same_step = mode is vector.AutoresetMode.SAME_STEP
    return [_Held(make(num_envs=1, **options), same_step) for _ in range(num_envs)]


def _one(make: str | Callable[..., Any], options: Mapping[str, Any]) -> Any:
    import gymnasium

    return gymnasium.make(make, **options) if isinstance(make, str) else make(**options)


def _makes_batches(make: Callable[..., Any]) -> bool:
    return "num_envs" in inspect.signature(make).parameters


def _mode(env: Any) -> Any:
    """How a vector environment resets itself, from its metadata; closes it."""
    from gymnasium.vector import AutoresetMode

    mode = env.metadata.get("autoreset_mode")
    env.close()
    if mode is None:
        raise ValueError(
            f"the metadata of {env} have no autoreset_mode, so it is not known when its "
            "environments reset themselves: set metadata['autoreset_mode'] to a value of "
            "gymnasium.vector.AutoresetMode."
        )
    return AutoresetMode(mode)
