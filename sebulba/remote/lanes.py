"""Remote lanes as the actors of a trainer see them: environments that can be lost."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sebulba.envs.contract import TimestepCheck
from sebulba.remote.wire import Codec, WireError
from sebulba.runtime.queues import ShutDown
from sebulba.types import EnvsLost, EnvSpec, Timestep
from sebulba.validation import ConfigError


class LaneError(RuntimeError):
    """A run has lost a lane without which it was not to go on."""


@dataclasses.dataclass
class LaneCounts:
    """What one lane has done since the run began.

    Attributes:
      steps: steps of its environments, in all B of them.
      round_trips: messages there and back.
      nbytes: of both directions.
      network_seconds: from an action to its timestep, without the environments' own time.
      environment_seconds: what the environments took.
      trainer_seconds: from a timestep to its action.
      lives: connections so far.
    """

    steps: int = 0
    round_trips: int = 0
    nbytes: int = 0
    network_seconds: float = 0.0
    environment_seconds: float = 0.0
    trainer_seconds: float = 0.0
    lives: int = 0


class Life:
    """One connection of an env-host to a lane, between the listener's thread and the actor's.

    Attributes:
      number: how many lives the lane had before.
      peer: the env-host's address.
      codec: of its messages.
    """

    def __init__(self, number: int, peer: str, codec: Codec) -> None:
        """Made in the listener's thread, in its event loop."""
        self.number = number
        self.peer = peer
        self.codec = codec
        self._loop = asyncio.get_running_loop()
        self._actions: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._timesteps: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def deliver(self, message: bytes | Exception) -> None:
        """Give the actor a timestep, or tell it how this life has ended."""
        self._timesteps.put(message)

    async def action(self) -> bytes:
        """Wait for what to send to the env-host.

        Raises:
          Exception: what the actor ended this life with.
        """
        return _unless_raised(await self._actions.get())

    def receive(self) -> bytes:
        """Wait for a timestep, in the actor's thread.

        Raises:
          EnvsLost: this life has ended.
          ShutDown: the run has.
        """
        return _unless_raised(self._timesteps.get())

    def send(self, message: bytes | Exception) -> None:
        """Have an action sent, or this life ended, from the actor's thread."""
        try:
            self._loop.call_soon_threadsafe(self._actions.put_nowait, message)
        except RuntimeError:  # The loop is closed: the run ends, which ``receive`` tells.
            self.deliver(ShutDown())


def _unless_raised(given: bytes | Exception) -> bytes:
    if isinstance(given, Exception):
        raise given
    return given


class Lane:
    """The place of one remote lane.

    Attributes:
      number: among the actors of this host.
      seed: of the lane's environments; None until the actor has begun.
      life: the present connection, if there is one. Only the listener's thread changes it.
      counts: what it has done.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.seed: int | None = None
        self.life: Life | None = None
        self.counts = LaneCounts()
        self._lives: queue.SimpleQueue[Life | None] = queue.SimpleQueue()
        self._down = False

    def is_free(self) -> bool:
        """Whether an env-host can have it now."""
        return self.seed is not None and self.life is None and not self._down

    def begin(self, peer: str, codec: Codec) -> tuple[Life, int]:
        """A new life, and the seed of its environments, which no other life of the run has."""
        assert self.seed is not None
        self.life = life = Life(self.counts.lives, peer, codec)
        self.counts.lives += 1
        self._lives.put(life)
        seeds = np.random.SeedSequence([self.seed, life.number])
        return life, int(seeds.generate_state(1)[0] >> 1)

    def end(self, why: str) -> None:
        """Tell the actor that this life is over; the lane is free for the next one."""
        life, self.life = self.life, None
        assert life is not None
        life.deliver(EnvsLost(f"the env-host of lane {self.number} at {life.peer} is lost: {why}"))

    def next_life(self) -> Life:
        """Wait for an env-host, in the actor's thread.

        Raises:
          ShutDown: the run has ended.
        """
        life = self._lives.get()
        if life is None or self._down:
            raise ShutDown
        return life

    def shutdown(self) -> None:
        """Wake the actor with ``ShutDown``, from any thread."""
        self._down = True
        self._lives.put(None)
        if (life := self.life) is not None:
            life.deliver(ShutDown())


class RemoteEnv:
    """The environments of a lane, wherever they are: ``sebulba.types.Env`` for one actor.

    ``reset`` waits for an env-host, and ``step`` raises ``EnvsLost`` where it is gone; ``reset``
    then waits for the next one. What an env-host sends is checked as that of any environment, and
    one that breaks a rule is dropped.
    """

    def __init__(self, lane: Lane, spec: EnvSpec, seed: int, ends_run: bool) -> None:
        """Let env-hosts have ``lane``.

        Args:
          lane: where they connect to.
          spec: of the environments, with plain dicts.
          seed: from which that of each life is derived.
          ends_run: whether a loss raises ``LaneError`` in place of ``EnvsLost``.
        """
        self.spec = spec
        self._lane = lane
        self._ends_run = ends_run
        self._life: Life | None = None
        self._check = TimestepCheck(spec)
        self._number = 0
        self._at = 0.0
        lane.seed = seed

    def reset(self) -> Timestep:
        self._drop("its environments were reset")
        while True:
            self._life = life = self._lane.next_life()
            self._check = TimestepCheck(self.spec)
            self._number = 0
            try:
                return self._receive(life, self._check.reset)
            except EnvsLost:
                continue

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        life, counts = self._life, self._lane.counts
        assert life is not None, "reset comes before the first step"
        message = life.codec.encode_action(self._number, action)
        sent = time.perf_counter()
        counts.trainer_seconds += sent - self._at
        counts.nbytes += len(message)
        life.send(message)
        self._number += 1
        try:
            return self._receive(life, self._check.step, sent)
        except EnvsLost as error:
            if self._ends_run:
                raise LaneError(
                    f"{error}. With lost_lane wait, or --lost-lane wait, the run would have waited "
                    "for another one. Go on with resume, on the command line with --resume."
                ) from error
            raise

    def close(self) -> None:
        self._life = None  # The listener says goodbye.

    def _receive(
        self, life: Life, check: Callable[[Timestep], None], sent: float | None = None
    ) -> Timestep:
        message = life.receive()
        self._at = time.perf_counter()
        try:
            timestep, seconds = life.codec.decode_timestep(message, self._number)
            check(timestep)
        except (WireError, ConfigError) as error:
            self._drop(str(error))
            raise EnvsLost(str(error)) from error
        counts = self._lane.counts
        counts.nbytes += len(message)
        if sent is not None:
            counts.steps += self.spec.num_envs
            counts.round_trips += 1
            counts.environment_seconds += seconds
            counts.network_seconds += max(0.0, self._at - sent - seconds)
        return timestep

    def _drop(self, why: str) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.send(WireError(why))
