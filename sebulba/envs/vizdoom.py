"""ViZDoom (Wydmuch et al., 2019), as options of EnvPool."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
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


def end_blas_threads() -> None:
    """End the threads of OpenBLAS, which starts them again when it needs them.

    EnvPool starts the games from several threads at once, by fork. Before a fork OpenBLAS (that of
    NumPy, and that of SciPy) waits for its threads to end. Where two forks wait for the same
    threads, one waits for ever.
    """
    # Not os.fork, which warns of JAX's threads: here the child does nothing but end. With the
    # interpreter lock held (PyDLL), which the child needs for that.
    process = ctypes.PyDLL(None).fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
