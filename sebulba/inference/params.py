"""Parameters on their way from the learner to one inference device."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import jax

from sebulba.runtime.queues import ShutDown
from sebulba.types import Params


class Versioned(NamedTuple):
    """Parameters and the turns of the learner that made them."""

    version: int
    params: Params


class ParamsSlot:
    """The last versions of the parameters on one inference device."""

    def __init__(self, device: jax.Device) -> None:
        """The copies live on ``device``."""
        self.device = device
        self._changed = threading.Condition()
        self._versions: deque[Versioned] = deque()
        self._down = False

    def publish(self, version: int, params: Params) -> None:
        """Start copying ``params``, which must be on one device of this host, to the slot.

        The copy never aliases its source: the learner donates its parameters to the next update.
        """
        copy = jax.device_put(params, self.device, may_alias=False)
        with self._changed:
            self._versions.append(Versioned(version, copy))
            # Two versions stay: actors that lag by exactly one still ask for the older.
            while len(self._versions) > 2 and _is_ready(self._versions[1]):
                self._versions.popleft()
            self._changed.notify_all()

    def newest(self) -> Versioned:
        """The newest version whose copy has arrived.

        Calling a jitted function with parameters that are still on their way would block every
        actor of the device.
        """
        with self._changed:
            self._wait(0)
            ready = [versioned for versioned in self._versions if _is_ready(versioned)]
            newest = ready[-1] if ready else self._versions[0]
        return newest

    def exactly(self, version: int) -> Versioned:
        """Version ``version``, waiting until it is published.

        Raises:
          ShutDown: the slot was shut down.
          LookupError: that version is gone.
        """
        with self._changed:
            self._wait(version)
            for versioned in self._versions:
                if versioned.version == version:
                    return versioned
            held = [versioned.version for versioned in self._versions]
        raise LookupError(f"version {version} of the parameters is gone: the slot holds {held}")

    def shutdown(self) -> None:
        """Wake every waiting call with ``ShutDown``."""
        with self._changed:
            self._down = True
            self._changed.notify_all()

    def _wait(self, version: int) -> None:
        self._changed.wait_for(
            lambda: self._down or (self._versions and self._versions[-1].version >= version)
        )
        if self._down:
            raise ShutDown


def _is_ready(versioned: Versioned) -> bool:
    return all(leaf.is_ready() for leaf in jax.tree.leaves(versioned.params))
