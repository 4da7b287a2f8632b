"""Environments as pictures: what they draw themselves, or what the agent sees of them.

As a program (``python -m sebulba.envs.drawing ENV OPTIONS PROTOCOL``) it draws one picture, and
ends well if that worked. Where OpenGL is missing, drawing MuJoCo ends the process.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sebulba import envs
from sebulba.envs.base import named_arrays
from sebulba.envs.previous_action import PreviousAction
from sebulba.types import Env
from sebulba.validation import ConfigError

Array = np.ndarray[Any, Any]
_SMALLEST = 256
"""Pixels of the shorter side of a picture at least: smaller ones are made larger."""


@runtime_checkable
class Drawn(Protocol):
    """What an environment may have besides: the first of its batch as a picture."""

    def render(self) -> Array:
        """Return uint8 ``[H, W, 3]``, red, green and blue."""


def drawing_options(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options``, with what an environment needs so that it can be drawn."""
    # Gymnasium's must know from the start.
    needed = {"render_mode": "rgb_array"} if env_id.startswith("gymnasium:") else {}
    return {**needed, **options}


@functools.cache
def _can_draw(env_id: str, options: str, protocol: str) -> bool:
    command = [sys.executable, "-m", "sebulba.envs.drawing", env_id, options, protocol]
    return subprocess.run(command, capture_output=True).returncode == 0


def can_draw(env_id: str, options: Mapping[str, Any], protocol: str) -> bool:
    """Whether environments of this name draw themselves here, tried in another process."""
    return _can_draw(env_id, json.dumps(dict(options)), protocol)


def drawn_by(env: Env) -> Drawn | None:
    """What draws an environment; None if nothing does."""
    inner = env.env if isinstance(env, PreviousAction) else env
    return inner if isinstance(inner, Drawn) else None


def seen(observation: Any) -> Array:
    """What the agent sees of the first environment, as a picture ``[H, W, 3]``.

    Args:
      observation: ``[B, ...]``, of which the first image is taken.

    Raises:
      ConfigError: there is no image in it.
    """
    for _, array in named_arrays(observation):
        picture = _as_picture(np.asarray(array)[0])
        if picture is not None:
            return picture
    raise ConfigError(
        "the environment cannot be drawn here, and its observations are no images: give it a "
        "method render() that returns uint8 [H, W, 3]. MuJoCo's need OpenGL on the system."
    )


def enlarged(picture: Array) -> Array:
    """The picture with each pixel repeated until it can be seen, and even sides, as videos need."""
    factor = max(1, -(-_SMALLEST // min(picture.shape[:2])))
    picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]


def _as_picture(image: Array) -> Array | None:
    """``[H, W]`` or ``[H, W, C]`` as red, green and blue; None of what is no image."""
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or min(image.shape[:2]) < 5:
        return None
    if image.dtype != np.uint8:
        low, high = image.min(), image.max()
        image = ((image - low) / max(high - low, 1e-6) * 255).astype(np.uint8)
    # Of maps with other channels, such as those of Football, the brightest.
    return image if image.shape[-1] == 3 else image.max(-1, keepdims=True).repeat(3, -1)


def _main(env_id: str, options: str, protocol: str) -> None:
    env = envs.make(env_id, 1, seed=0, options=json.loads(options), atari_protocol=protocol)
    env.reset()
    drawer = drawn_by(env)
    assert drawer is not None
    drawer.render()


if __name__ == "__main__":
    _main(*sys.argv[1:])
