"""ViZDoom (Wydmuch et al., 2019), as options of EnvPool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWNED: Mapping[str, str] = {
    "stack_num": "observations are single frames: stack frames in the agent's network",
}
"""Options that cannot be set, and what to do instead."""


def vizdoom_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return EnvPool's options: those of the user, and what makes the action a discrete one.

    Without ``use_combined_action``, the action is how far each button is pressed, without bounds.
    With it, the action is one of the combinations of buttons that make sense together.
    """
    return {"use_combined_action": True, **options, "stack_num": 1}


def make_room() -> None:
    """Make the directory that every game writes to, in the working directory.

    Each game makes it if it is missing. Where several start at once, all but the first fail then,
    and EnvPool waits for them for ever.
    """
    Path("_vizdoom").mkdir(exist_ok=True)
