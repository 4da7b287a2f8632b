"""The two usual protocols for Atari games."""

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
"""The options that each protocol sets. Options given by the user override them.

``machado``: Machado et al. (2018), "Revisiting the Arcade Learning Environment": sticky actions
instead of random starts, all 18 actions, and only the end of the game is a termination.
``impala``: Espeholt et al. (2018), "IMPALA": up to 30 no-ops at the start, only the actions that
the game uses, and losing a life is a termination for learning.

EnvPool plays at least one no-op after a reset, so ``noop_max=1`` means exactly one there.
"""

OWNED: Mapping[str, str] = {
    "stack_num": "observations are single frames: stack frames in the agent's network",
    "reward_clip": "rewards are the game's own: clip them in the loss",
    "episodic_life": "returns are over whole games: use zero_discount_on_life_loss=True",
}
"""Options that cannot be set, and what to do instead."""


def protocol_options(protocol: str) -> Mapping[str, Any]:
    """Return what ``protocol`` sets.

    Raises:
      ValueError: it is not one of the ``PROTOCOLS``.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"atari_protocol is {protocol!r}, but must be one of {', '.join(PROTOCOLS)}."
        )
    return PROTOCOLS[protocol]


def atari_options(protocol: str, frame_skip: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return EnvPool's options for one of the ``PROTOCOLS``, overridden by the user's.

    Args:
      protocol: a key of ``PROTOCOLS``.
      frame_skip: frames for each agent step, unless ``options`` say so.
      options: the options given by the user.

    Raises:
      ValueError: the protocol is unknown, or the frame skip or ``noop_max`` is below 1.
    """
    frame_skip = options.get("frame_skip", frame_skip)
    if frame_skip < 1:
        raise ValueError(f"frame_skip is {frame_skip}, but must be at least 1: 4 is usual.")
    merged = {
        # In agent steps, so that a game ends after MAX_FRAMES whatever the frame skip.
        "max_episode_steps": MAX_FRAMES // frame_skip,
        **protocol_options(protocol),
        **options,
        # Last, so that nobody overrides them (see OWNED). EnvPool's default is to stack 4 frames.
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
