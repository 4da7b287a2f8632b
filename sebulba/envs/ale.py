"""Atari games of ale-py (Bellemare et al., 2013) as ``sebulba.types.Env``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from sebulba.envs import atari
from sebulba.envs.base import check_num_envs, unknown
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep
from sebulba.validation import ConfigError

Array = np.ndarray[Any, Any]

# Options that cannot be set, and what to do instead.
_OWNED = {
    "num_envs": "use the argument num_envs",
    "num_threads": "use the argument num_threads",
    "batch_size": "all environments are stepped together: use more actors instead",
    "autoreset_mode": "an environment resets in the step after an end",
    "continuous": "its actions are discrete",
    "continuous_action_threshold": "its actions are discrete",
    "stack_num": "observations are single frames: stack frames in the agent's network",
    "reward_clipping": "rewards are the game's own: clip them in the loss",
    "episodic_life": "returns are over whole games: use zero_discount_on_life_loss=True",
    "life_loss_info": "use zero_discount_on_life_loss=True",
}


class AleEnv:
    """A batch of one Atari game, stepped by threads in C++ as in EnvPool.

    Rewards are the game's own. Observations are single frames, uint8 ``[B, 84, 84]``, or ``[B, 84,
    84, 3]`` with the option ``grayscale=False``. The protocols are those of
    ``sebulba.envs.atari``. A game starts with 0 to ``noop_max - 1`` no-ops, where EnvPool plays 1
    to ``noop_max``: with ``machado`` with none, and with ``impala`` with up to 30. With
    ``zero_discount_on_life_loss`` the discount is 0 at a timestep with fewer lives than the one
    before, but the game continues.

    Args:
      game: a name of ``ale_py.roms.get_all_rom_ids()``, such as "ms_pacman".
      num_envs: B, at least 1.
      seed: at least 0. The seed of each environment is drawn from it.
      num_threads: threads that step the environments; 0 for one for each environment or core.
      options: keyword arguments of ``ale_py.AtariVectorEnv``, and ``zero_discount_on_life_loss``.
        They override those of the protocol.
      atari_protocol: ``"machado"`` or ``"impala"``.

    Raises:
      ConfigError: the package ale-py is missing.
      ValueError: the game or an option is unknown, or an argument is out of range.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        seed: int,
        num_threads: int = 0,
        options: Mapping[str, Any] | None = None,
        atari_protocol: str = "machado",
    ) -> None:
        try:
            from ale_py import AtariVectorEnv, roms
        except ImportError as error:
            raise ConfigError(
                f"ale:{game} needs ale-py ({error}): install the extra ale, "
                "pip install -e '.[ale]' in a clone."
            ) from error
        check_num_envs(num_envs)
        if seed < 0 or num_threads < 0:
            raise ValueError(
                f"seed is {seed} and num_threads is {num_threads}, but neither can be negative."
            )
        if game not in (known := roms.get_all_rom_ids()):
            raise unknown("game of ale-py", game, known)
        merged = _options(game, atari_protocol, options or {}, AtariVectorEnv)
        self._ends_on_life_loss = merged.pop("zero_discount_on_life_loss")
        env = cast(Any, AtariVectorEnv(game, num_envs, num_threads=num_threads, **merged))
        self._env = env
        self._seeds = (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).astype(np.int32)
        self._ended = np.zeros(num_envs, np.bool_)
        self._lives = np.zeros(num_envs, np.int32)
        # Without the axis of the stack, which is 1.
        shape = env.single_observation_space.shape[1:]
        self._spec = EnvSpec(
            ArraySpec(shape, np.dtype(np.uint8)),
            DiscreteSpec(int(env.single_action_space.n)),
            num_envs,
            merged["frameskip"],
            tuple(action.name for action in env.ale.get_action_set()),
        )

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Timestep:
        observation, info = self._env.reset(seed=self._seeds)
        self._lives = info["lives"]
        self._ended = np.zeros_like(self._ended)
        ones = np.ones(self._spec.num_envs, np.float32)
        return Timestep(observation[:, 0], 0 * ones, ones, ones.astype(np.bool_))

    def step(self, action: Array) -> Timestep:
        observation, reward, terminated, truncated, info = self._env.step(
            np.asarray(action, np.int32)
        )
        first, self._ended = self._ended, terminated | truncated
        if self._ends_on_life_loss:
            terminated = terminated | ((info["lives"] < self._lives) & ~first)
        self._lives = info["lives"]
        return Timestep(
            observation[:, 0], reward.astype(np.float32), (~terminated).astype(np.float32), first
        )

    def close(self) -> None:
        # Its own may be called only once; its destructor ends the threads.
        self._env = None


def _options(
    game: str, protocol: str, options: Mapping[str, Any], constructor: Any
) -> dict[str, Any]:
    """The options for ale-py, and ``zero_discount_on_life_loss``.

    Raises:
      ValueError: an option or the protocol is unknown, or an option cannot be set.
    """
    known = set(inspect.signature(constructor).parameters) - {"game"}
    for name in options:
        if name in _OWNED:
            raise ValueError(f"ale:{game} has no option {name!r}, because {_OWNED[name]}.")
        if name not in known | {"zero_discount_on_life_loss"}:
            raise unknown(f"option of ale:{game}", name, known - set(_OWNED))
    of_protocol = dict(atari.protocol_options(protocol))
    # ale-py draws the number of no-ops below noop_max, EnvPool up to it.
    if of_protocol["noop_max"] > 1:
        of_protocol["noop_max"] += 1
    return {
        "max_num_frames_per_episode": atari.MAX_FRAMES,
        "frameskip": 4,
        **of_protocol,
        **options,
        "stack_num": 1,
        "reward_clipping": False,
    }
