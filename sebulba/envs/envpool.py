"""The environments of EnvPool (Weng et al., 2022) as ``sebulba.types.Env``."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from sebulba.envs import atari, envpool_spec, vizdoom
from sebulba.envs.base import check_num_envs, map_arrays, unknown
from sebulba.types import ArraySpec, EnvSpec, Timestep

Array = np.ndarray[Any, Any]

# Options that cannot be set, and what to do instead.
_OWNED = {
    "num_envs": "use the argument num_envs",
    "num_threads": "use the argument num_threads",
    "seed": "use the argument seed",
    "env_seed": "use the argument seed",
    "batch_size": "all environments are stepped together: use more actors instead",
    "max_num_players": "only environments with one player are supported",
    "env_type": "the adapter uses EnvPool's lower level",
    "gym_reset_return_info": "the adapter uses EnvPool's lower level",
    "channel_first": "images are [H, W, C], as convolutions take them",
}
_FIRST = 0  # The value of dm_env.StepType.FIRST in EnvPool's state.


@functools.cache
def _envpool() -> Any:
    """The package, which is not imported at the top of the file, because it takes seconds.

    Where Qt is missing, EnvPool keeps the error until somebody wants Procgen. With its traceback,
    it would keep all that the callers of this function have: a whole training, with its arrays.
    """
    import envpool

    for name, module in list(sys.modules.items()):
        if name.startswith("envpool."):
            for value in list(vars(module).values()):
                if isinstance(value, BaseException):
                    value.__traceback__ = None
    gc.collect()  # The frames of the import hold each other too.
    return envpool


def environment_ids() -> list[str]:
    """Return all ids of EnvPool."""
    return list(_envpool().list_all_envs())


class EnvPoolEnv:
    """A batch of any single-agent environment of EnvPool that observes an array or a dict.

    Observations of float64 become float32. Rewards are those of the environment, never clipped.
    The discount is 0 on termination and 1 on truncation. If EnvPool does not say which of the two
    ended an episode at its time limit, it counts as truncation. A warning says so where EnvPool is
    known to ignore the seed.

    Atari games (any environment with sticky actions) follow one of the protocols ``"machado"`` and
    ``"impala"`` of ``sebulba.envs.atari``. Observations are single frames, uint8 ``[B, 84, 84]``.
    With ``zero_discount_on_life_loss`` (set by ``"impala"``) the discount is 0 at a timestep with
    fewer lives than the one before, but the game continues: ``first`` stays False, and the sum of
    rewards between two timesteps with ``first`` is the return of the whole game.

    In ViZDoom an action is one of the combinations of buttons, and observations are single frames.
    The text of the mission of MiniGrid and BabyAI is not observed, unless the option ``mission`` is
    True: then as bytes.

    Args:
      env_id: an id of ``envpool.list_all_envs()``.
      num_envs: B, at least 1.
      seed: at least 0. The seed of each environment is drawn from it.
      num_threads: threads that step the environments; 0 for one per CPU core.
      options: EnvPool's options for this environment. They override those of the protocol.
      atari_protocol: ``"machado"`` or ``"impala"``, for Atari games only.

    Raises:
      ValueError: the id or an option is unknown, the environment is not supported or needs a system
        library that is missing, or an argument is out of range.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int,
        num_threads: int = 0,
        options: Mapping[str, Any] | None = None,
        atari_protocol: str = "machado",
    ) -> None:
        if seed < 0 or num_threads < 0:
            raise ValueError(
                f"seed is {seed} and num_threads is {num_threads}, but neither can be negative."
            )
        check_num_envs(num_envs)
        native_options = _native_options(env_id, options or {}, atari_protocol)
        with_mission = native_options.pop(envpool_spec.MISSION, False)
        envpool = _envpool()
        # Checked before the pool is made, because making one may write files (VizDoom does).
        envpool_spec.check_supported(env_id, envpool.make_spec(env_id, **native_options))
        if envpool_spec.ignores_seed(env_id):
            warnings.warn(
                f"the episodes of {env_id} are the same for every seed in EnvPool before 1.2.7: as "
                "long as environments take the same actions, they are copies of each other. A "
                "spread over seeds says nothing about chance in them. Where that matters, install "
                "EnvPool 1.2.7 or choose another environment.",
                stacklevel=2,
            )
        if envpool_spec.is_vizdoom(envpool.make_spec(env_id)):
            vizdoom.prepare()
        self._pool: Any = envpool.make_gymnasium(
            env_id,
            num_envs=num_envs,
            num_threads=num_threads,
            # From one seed, EnvPool would use seed, seed + 1, ..., as would an actor with the next
            # seed. It takes int32, hence the shift by one bit.
            seed=(np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist(),
            **native_options,
        )
        native = self._pool.spec
        self._spec = envpool_spec.env_spec(native, num_envs, with_mission)
        action = envpool_spec.native_action(native)
        self._action = dataclasses.replace(action, shape=(num_envs, *action.shape))
        self._observation_keys = envpool_spec.observation_keys(native, with_mission)
        self._env_ids = np.arange(num_envs, dtype=np.int32)
        self._ends_on_life_loss = getattr(native.config, "zero_discount_on_life_loss", False)
        self._lives = np.zeros(num_envs, np.int32)

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Timestep:
        self._pool._reset(self._env_ids)
        return self._receive()

    def step(self, action: Array) -> Timestep:
        # EnvPool's public step takes 10 microseconds more, warns, and hides the step type. The
        # method below it refuses arrays that are not writable, such as JAX's: hence the copy.
        native = np.array(action, self._action.dtype, order="C")
        if native.shape != self._action.shape:
            raise ValueError(
                f"action has shape {native.shape}, but must have shape {self._action.shape}: "
                "give one action for each environment."
            )
        # The ids of the environments, and those of the players' environments: one player in each.
        self._pool._send([self._env_ids, self._env_ids, native])
        return self._receive()

    def render(self) -> Array:
        """The first environment as a picture, uint8 ``[H, W, 3]``.

        MuJoCo's environments end the process where there is no OpenGL; others raise RuntimeError
        if they cannot be drawn.
        """
        # Its public method wants to know from the start that this will be asked for.
        frame: Array = self._pool._render(self._env_ids[:1], 0, 0, -1)[0]
        return frame

    def close(self) -> None:
        # EnvPool's own close leaves its threads running; its destructor ends them.
        self._pool = None

    def _receive(self) -> Timestep:
        state = dict(zip(self._pool._state_keys, self._pool._recv(), strict=True))
        first = state["step_type"] == _FIRST
        terminated = self._terminated(state) & ~first
        return Timestep(
            observation=self._observation(state),
            reward=np.where(first, np.float32(0), state["reward"]),
            # Not EnvPool's own discount, which is 0 on truncation too.
            discount=(~terminated).astype(np.float32),
            first=first,
        )

    def _terminated(self, state: Mapping[str, Array]) -> Array:
        # Newer versions of EnvPool give `terminated`, for some environments only. In the others, an
        # episode that terminates in the very step of its time limit seems truncated.
        terminated = state.get("terminated", state["done"] & ~state["trunc"])
        if self._ends_on_life_loss:
            terminated = terminated | (state["info:lives"] < self._lives)
            self._lives = state["info:lives"]
        return terminated

    def _observation(self, state: Mapping[str, Array]) -> Any:
        arrays = envpool_spec.nested({key: state[key] for key in self._observation_keys})
        return map_arrays(_as, self._spec.observation, arrays)


def _native_options(env_id: str, options: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Check the id and the user's options; return the options for EnvPool, and that of the mission.

    Raises:
      ValueError: the id or an option is unknown, an option cannot be set, or a library is missing.
    """
    envpool = _envpool()
    known = environment_ids()
    if env_id not in known:
        raise unknown("environment", env_id, known)
    try:
        spec: Any = envpool.make_spec(env_id)
    except ImportError as error:  # A library of the system, such as Qt for Procgen.
        raise ValueError(f"{env_id} cannot be loaded: {error}") from error
    is_atari, is_vizdoom = envpool_spec.is_atari(spec), envpool_spec.is_vizdoom(spec)
    owned = {
        **_OWNED,
        **(atari.OWNED if is_atari else {}),
        **(vizdoom.OWNED if is_vizdoom else {}),
    }
    known_options = {*spec.config._fields, *envpool_spec.own_options(spec)}
    for name in options:
        if name in owned:
            raise ValueError(f"{env_id} has no option {name!r}, because {owned[name]}.")
        if name not in known_options:
            raise unknown(f"option of {env_id}", name, known_options - set(owned))
    if is_atari:
        return atari.atari_options(protocol, spec.config.frame_skip, options)
    if is_vizdoom:
        return vizdoom.vizdoom_options(options)
    is_procgen = "channel_first" in spec.config._fields
    return {**options, "channel_first": False} if is_procgen else dict(options)


def _as(spec: ArraySpec, value: Array) -> Array:
    """Return ``value`` in the shape and dtype of ``spec``, as a view unless the dtype differs."""
    return value.reshape(len(value), *spec.shape).astype(spec.dtype, copy=False)
