"""Videos of agents."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.envs import drawing, outside
from sebulba.rundir.reading import load_config
from sebulba.runners.environments import OWN_ENV, bare_make_env, probe, with_last_action
from sebulba.runners.evaluation import Evaluation, evaluate
from sebulba.runners.restoring import Checkpoint, Restored, restore
from sebulba.types import Agent, Env, EnvSpec, MakeEnv, Params, Timestep
from sebulba.validation import ConfigError

Array = np.ndarray[Any, Any]
KINDS = (".mp4", ".gif")
MAX_STEPS = 5000
FRAMES_PER_SECOND = 60
"""Of games of which the agent does not see every frame, such as Atari's."""
STEPS_PER_SECOND = 30
"""Of others."""


class _Enough(Exception):
    """The longest video has been recorded."""


class _Recorder:
    """An environment that hands a picture of each timestep on."""

    def __init__(
        self, env: Env, draws: bool, take: Callable[[Array], None], max_steps: int
    ) -> None:
        self._env, self._take = env, take
        self._drawn = drawing.drawn_by(env) if draws else None
        self._left = max_steps

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    def reset(self) -> Timestep:
        return self._recorded(self._env.reset())

    def step(self, action: Array) -> Timestep:
        timestep = self._env.step(action)
        if timestep.first[0]:  # Of the next episode, which is no part of the video.
            return timestep
        if not self._left:
            raise _Enough
        self._left -= 1
        return self._recorded(timestep)

    def close(self) -> None:
        self._env.close()

    def _recorded(self, timestep: Timestep) -> Timestep:
        own = self._drawn
        picture = drawing.seen(timestep.observation) if own is None else own.render()
        self._take(drawing.enlarged(picture))
        return timestep


def record(
    run: Path | str,
    path: Path | str,
    *,
    greedy: bool = False,
    seed: int = 0,
    checkpoint: Checkpoint = None,
    max_steps: int = MAX_STEPS,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    algorithm: Algorithm[Any] | None = None,
) -> Evaluation | None:
    """Write a video of one episode of a run's agent.

    Pictures are what the environment draws of itself, or else what the agent sees.

    Args:
      run: a run directory.
      path: a file whose name ends in .mp4 or .gif.
      greedy: always take the best action.
      seed: of the environment and the actions.
      checkpoint: the number of turns behind it, or "best"; None takes the newest.
      max_steps: the video ends after so many steps, if the episode does not.
      make_env: the one given to ``train``, if any.
      agent: the one given to ``train``, if any.
      algorithm: the one given to ``train``, if any.

    Returns:
      the episode's return and length; None if it did not end within ``max_steps``.

    Raises:
      ConfigError: imageio is missing, the file has another ending, there are no pictures, or as
        ``evaluate_run``.
    """
    config = load_config(Path(run).expanduser(), algorithm)
    if make_env is None and config.env != OWN_ENV:
        make_env = bare_make_env(_drawing(config))
    restored = restore(
        run,
        checkpoint=checkpoint,
        greedy=greedy,
        make_env=make_env,
        agent=agent,
        algorithm=algorithm,
    )
    return _film(path, restored, seed, max_steps)


def play(
    config: Config, agent: Agent, params: Params, make_env: MakeEnv, seed: int, max_steps: int
) -> Any:
    """One episode as a video for a notebook, ``IPython.display.Video``.

    Raises:
      ConfigError: IPython or imageio is missing, or there are no pictures.
    """
    try:
        from IPython.display import Video
    except ImportError as error:
        raise ConfigError(
            f"a video is shown in a notebook ({error}): pip install ipython, or write it with "
            "sebulba eval RUN_DIR --video out.mp4."
        ) from error
    if config.env != OWN_ENV:
        make_env = with_last_action(config, bare_make_env(_drawing(config)), agent)
    restored = Restored(config, agent, params, make_env, 0)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "episode.mp4"
        _film(path, restored, seed, max_steps)
        return Video(data=path.read_bytes(), embed=True, mimetype="video/mp4")


def _film(path: Path | str, restored: Restored, seed: int, max_steps: int) -> Evaluation | None:
    path = Path(path).expanduser()
    if path.suffix not in KINDS:
        raise ConfigError(f"the video is {path}: its name must end in one of {', '.join(KINDS)}.")
    imageio = _imageio()
    draws = _can_draw(restored.config)
    rate = FRAMES_PER_SECOND / probe(restored.make_env).frame_skip
    rate = rate if rate < FRAMES_PER_SECOND else STEPS_PER_SECOND
    path.parent.mkdir(parents=True, exist_ok=True)
    how: dict[str, Any] = (
        {"fps": rate, "macro_block_size": 2}
        if path.suffix == ".mp4"
        else {"duration": 1000 / rate, "loop": 0}
    )
    with imageio.get_writer(path, **how) as writer:

        def recording(num_envs: int, seed: int) -> Env:
            env = restored.make_env(num_envs, seed)
            return _Recorder(env, draws, writer.append_data, max_steps)

        with contextlib.suppress(_Enough):
            return evaluate(
                restored.agent, restored.params, recording, 1, seed=seed, max_steps=max_steps + 1
            )
    return None


def _drawing(config: Config) -> Config:
    options = drawing.drawing_options(config.env, config.env_options)
    return dataclasses.replace(config, env_options=options)


def _can_draw(config: Config) -> bool:
    """Whether the environments may be asked to draw themselves, if they can."""
    if config.env == OWN_ENV or outside.is_own(config.env):
        return True
    return drawing.can_draw(config.env, _drawing(config).env_options, config.atari_protocol)


def _imageio() -> ModuleType:
    # Otherwise it starts ffmpeg by a fork that runs Python, which may hang beside JAX's threads.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
    try:
        import imageio.v2
        import imageio_ffmpeg  # noqa: F401  (Without it, only GIFs could be written.)
    except ImportError as error:
        raise ConfigError(
            f"videos need imageio and its ffmpeg ({error}): install the extra video, "
            "pip install -e '.[video]' in a clone."
        ) from error
    return imageio.v2
