"""ViZDoom (Wydmuch et al., 2019), as options of EnvPool."""

from __future__ import annotations

import ctypes
import os
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


def prepare() -> None:
    """Make it safe to start several games at once, as EnvPool does: by fork, from several threads.

    Each game makes the directory that it writes to, in the working directory, if it is missing.
    Where several do so at once, all but the first fail.

    Before a fork OpenBLAS (that of NumPy, and that of SciPy) waits for its threads to end. Where
    two forks wait for the same thread, one waits for ever.
    """
    Path("_vizdoom").mkdir(exist_ok=True)
    # A fork here ends those threads, until they are needed again. Not os.fork, which warns of JAX's
    # threads: the child does nothing but end, for which it needs the interpreter lock (PyDLL).
    process = ctypes.PyDLL(None).fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
