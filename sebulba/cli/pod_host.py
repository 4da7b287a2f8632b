"""A process of a local pod, ``pod_host POD WORDS``: ``sebulba WORDS`` until process POD ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the system send SIGTERM to this process when its parent ends, even if that is killed.

    Does nothing where the system is not Linux. Exits if the parent has ended already.

    Args:
      parent: its process id.
    """
    if sys.platform == "linux":
        # In this process and not between fork and exec, where Python should run no code.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    from sebulba.cli.main import main

    main(sys.argv[2:])
