"""ViZDoom (Wydmuch et al., 2019), as options of EnvPool."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
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


_EXCLUSIVE = (
    *("ATTACK", "USE", "JUMP", "CROUCH", "TURN180", "ALTATTACK", "RELOAD", "ZOOM", "SPEED"),
    *("STRAFE", "MOVE_RIGHT MOVE_LEFT", "MOVE_BACKWARD MOVE_FORWARD", "TURN_RIGHT TURN_LEFT"),
    *("LOOK_UP LOOK_DOWN", "MOVE_UP MOVE_DOWN", "LAND"),
    " ".join(f"SELECT_WEAPON{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)),
    *("SELECT_NEXT_WEAPON SELECT_PREV_WEAPON", "DROP_SELECTED_WEAPON", "ACTIVATE_SELECTED_ITEM"),
    *("SELECT_NEXT_ITEM SELECT_PREV_ITEM", "DROP_SELECTED_ITEM"),
)
"""All buttons, in ViZDoom's order. Of those in one string, at most one is pressed at a time."""


def action_names(config: Any) -> tuple[str, ...]:
    """The buttons that each action presses, such as "ATTACK+TURN_LEFT", in EnvPool's order.

    Empty where buttons take numbers (the option ``delta_button_config``), or if the scenario's
    configuration does not list the buttons in the usual way.

    Args:
      config: of EnvPool's spec.
    """
    text = re.sub(r"#.*", "", Path(config.cfg_path).read_text())
    block = re.search(r"available_buttons\s*=\s*\{(.*?)\}", text, re.IGNORECASE | re.DOTALL)
    if config.delta_button_config or block is None:
        return ()
    there = set(block[1].upper().split())
    choices = []
    for names in _EXCLUSIVE:
        pressed = [name for name in names.split() if name in there]
        always = names == "SPEED" and config.force_speed and pressed
        choices.append(pressed if always else ["", *pressed])
    every = itertools.product(*choices)
    return tuple("+".join(filter(None, pressed)) or "NOTHING" for pressed in every)


def is_for_several(config: Any) -> bool:
    """Whether a scenario is a match of several players: started with one, it ends the process.

    EnvPool states that all of them have one player.

    Args:
      config: of EnvPool's spec.
    """
    return Path(config.cfg_path).stem in ("cig", "multi_duel")


def prepare() -> None:
    """Make it safe to start several games at once, as EnvPool does: by fork, from several threads.

    Each game makes the directory that it writes to, in the working directory, if it is missing.
    Where several do so at once, all but the first fail.

    Before a fork OpenBLAS (that of NumPy, and that of SciPy) waits for its threads to end. Where
    two forks wait for the same thread, one waits for ever.
    """
    Path("_vizdoom").mkdir(exist_ok=True)
    # A fork here ends those threads, until they are needed again. Its child must run no Python: the
    # interpreter lock may be wanted by a thread that the child does not have. ``user`` changes
    # nothing, but with it subprocess forks, and otherwise it would not.
    subprocess.run(["true"], user=os.getuid(), check=True)
