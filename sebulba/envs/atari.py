"""The two evaluation protocols of the Atari games, as options of EnvPool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_FRAMES = 108_000
"""Half an hour of play at 60 frames a second (Machado et al., 2018)."""

PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "machado": {
        "repeat_action_probability": 0.25,
        "full_action_space": True,
        "noop_max": 1,
        "use_fire_reset": False,
        "zero_discount_on_life_loss": False,
    },
    "impala": {
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "noop_max": 30,
        "use_fire_reset": False,
        "zero_discount_on_life_loss": True,
    },
}
"""What each protocol sets; options of the user come after.

``machado``: Machado et al. (2018), "Revisiting the Arcade Learning Environment": sticky actions
instead of random starts, all 18 actions, and the end of the game as the only termination.
``impala``: Espeholt et al. (2018), "IMPALA": up to 30 no-op starts, the actions that do
something in the game, and the loss of a life as a termination for learning.

EnvPool plays at least one no-op after a reset: ``noop_max=1`` means exactly one.
"""

OWNED: Mapping[str, str] = {
    "stack_num": "observations are single frames: stack frames in the agent's network",
    "reward_clip": "rewards are the game's own: clip them in the loss",
    "episodic_life": "returns are over whole games: use zero_discount_on_life_loss=True",
}
"""Options that are not the user's, and what to do instead."""


def atari_options(protocol: str, frame_skip: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """EnvPool's options for one of the ``PROTOCOLS``, with the user's on top.

    Args:
      protocol: a key of ``PROTOCOLS``.
      frame_skip: frames for each step where ``options`` do not say; the cap on the length of a
        game is ``MAX_FRAMES`` whatever the frame skip.
      options: the user's.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"atari_protocol is {protocol!r}, but must be one of {', '.join(PROTOCOLS)}."
        )
    frame_skip = options.get("frame_skip", frame_skip)
    if frame_skip < 1:
        raise ValueError(f"frame_skip is {frame_skip}, but must be at least 1: 4 is usual.")
    merged = {
        "max_episode_steps": MAX_FRAMES // frame_skip,
        **PROTOCOLS[protocol],
        **options,
        "stack_num": 1,
        "reward_clip": False,
        "episodic_life": False,
    }
    if merged["noop_max"] < 1:
        raise ValueError(
            f"noop_max is {merged['noop_max']}, but EnvPool plays at least one no-op after a "
            "reset: use 1 for no random start."
        )
    return merged
