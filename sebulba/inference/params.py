"""The slot through which an inference device gets the parameters of the learner."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import jax

from sebulba.runtime.queues import ShutDown
from sebulba.types import Params


class Versioned(NamedTuple):
    """Parameters as the learner published them.

    Attributes:
      version: how many turns it had completed.
      params: on the inference device.
      progress: the share of ``total_steps`` that was done, by which actors explore.
    """

    version: int
    params: Params
    progress: float


class ParamsSlot:
    """The newest versions of the parameters, on one inference device, for all of its actors."""

    def __init__(self, device: jax.Device) -> None:
        """``device`` is where the parameters are copied to."""
        self.device = device
        self._changed = threading.Condition()
        self._versions: deque[Versioned] = deque()
        self._down = False

    def publish(self, version: int, params: Params, progress: float) -> None:
        """Start to copy ``params``, which must be on one device of this host, to the slot."""
        # Never an alias, which it could be on a device that also learns: the learner donates its
        # parameters to the next update, while actors still use these.
        copy = jax.device_put(params, self.device, may_alias=False)
        with self._changed:
            self._versions.append(Versioned(version, copy, progress))
            # Two versions stay, because actors with a lag of exactly 1 still ask for the older. It
            # goes only when the one after it has arrived, so that `newest` has one that is ready.
            while len(self._versions) > 2 and _is_ready(self._versions[1]):
                self._versions.popleft()
            self._changed.notify_all()

    def newest(self) -> Versioned:
        """Wait until there is a version, and return the newest one whose copy has arrived.

        Raises:
          ShutDown: the slot was shut down.
        """
        with self._changed:
            self._wait(0)
            # A call with parameters that are still on their way would block the device, and with it
            # all of its actors.
            ready = [versioned for versioned in self._versions if _is_ready(versioned)]
            newest = ready[-1] if ready else self._versions[0]
        return newest

    def exactly(self, version: int) -> Versioned:
        """Wait until version ``version`` is published, and return it.

        Raises:
          ShutDown: the slot was shut down.
          LookupError: the version is older than those in the slot.
        """
        with self._changed:
            self._wait(version)
            for versioned in self._versions:
                if versioned.version == version:
                    return versioned
            held = [versioned.version for versioned in self._versions]
        raise LookupError(f"version {version} of the parameters is gone: the slot holds {held}")

    def held(self, version: int) -> Params | None:
        """The parameters of ``version`` if the slot has them, even after ``shutdown``."""
        with self._changed:
            for versioned in self._versions:
                if versioned.version == version:
                    return versioned.params
        return None

    def shutdown(self) -> None:
        """Raise ``ShutDown`` in all waiting calls."""
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
