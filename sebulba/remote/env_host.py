"""The other side of a lane: environments without a network, on a machine without accelerators."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, NoReturn

import numpy as np

from sebulba.envs.contract import TimestepCheck, check_spec
from sebulba.remote import compression, wire
from sebulba.remote.handshake import Facts, Refused
from sebulba.remote.link import Ended, Link, linked
from sebulba.remote.security import Security
from sebulba.remote.transport import Lost, connected
from sebulba.remote.wire import Codec, Kind, WireError
from sebulba.runtime.watchdog import STALLED, StallError
from sebulba.types import Env, EnvSpec, MakeEnv
from sebulba.validation import ConfigError

_ANSWER_SECONDS = 30.0
"""How long a trainer may take to answer a hello."""
_HUNG_SECONDS = 30.0
"""How long environments may take to end a step that nobody waits for any more."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 3.0
"""Seconds between two attempts to reach a trainer."""


@dataclasses.dataclass(frozen=True)
class EnvHost:
    """Steps environments for a trainer, as long as there is one.

    Attributes:
      address: the trainer's, HOST:PORT.
      security: what to show it.
      facts: what it must agree with.
      spec: of the environments of one lane.
      make_env: makes them.
      patience_seconds: how long to try to reach a trainer; 0: for ever.
      say: prints a line.
      compress: how timesteps are compressed.
    """

    address: str
    security: Security
    facts: Facts
    spec: EnvSpec
    make_env: MakeEnv
    patience_seconds: float
    say: Callable[[str], None]
    compress: compression.Name = "none"

    def run(self, lanes: int) -> None:
        """Serve ``lanes`` lanes until the run of the trainer is complete.

        Raises:
          ConfigError: the trainer has other settings or another token, the environments break a
            rule, or the package that compresses is not installed.
          StallError: there was no trainer for ``patience_seconds``.
          Exception: the environments failed.
        """
        asyncio.run(self.serve(lanes))

    async def serve(self, lanes: int) -> None:
        """What ``run`` runs in an event loop."""
        # One lane hears of it for all, also for those that wait for a place.
        with contextlib.suppress(Ended):
            await _together(self._serve() for _ in range(lanes))

    def measure(self, lanes: int, seconds: float = 5.0) -> str:
        """What the network and the trainer carry, in words: timesteps of zeros and their answers.

        Raises:
          ConfigError: as ``run``.
          StallError: there is no trainer.
        """
        taken: list[float] = []
        try:
            asyncio.run(_together(self._measure(taken, seconds) for _ in range(lanes)))
        except (Lost, Refused) as error:
            raise self._given_up(error) from error
        rate = len(taken) / seconds
        codec, num_envs = Codec(self.spec), self.spec.num_envs
        median, slowest = np.percentile(taken, [50, 99]) * 1e3
        return (
            f"{lanes} lanes of {num_envs} environments: {rate:,.0f} round trips/s, "
            f"{rate * num_envs:,.0f} environment steps/s, "
            f"{rate * codec.round_trip_bytes / 1e6:,.1f} MB/s; a round trip takes {median:.2f} ms "
            f"(median), {slowest:.2f} ms (99th percentile)"
        )

    async def _measure(self, taken: list[float], seconds: float) -> None:
        codec = Codec(self.spec)
        timestep = codec.no_timestep()
        async with self._welcomed(measure=True) as (link, _):
            start = time.perf_counter()
            for number in itertools.count():
                sent = time.perf_counter()
                if sent - start > seconds:
                    return
                link.post(codec.encode_timestep(number, timestep, 0.0))
                codec.decode_action(await link.receive(_ANSWER_SECONDS), number)
                taken.append(time.perf_counter() - sent)

    async def _serve(self) -> NoReturn:
        """One lane, in as many lives as it takes until the run has ``Ended``."""
        codec = Codec(self.spec, compression.named(self.compress))
        alone, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            is_welcome = False
            try:
                async with self._welcomed() as (link, words):
                    is_welcome = True
                    self.say(f"lane {words['lane']} of {self.address}")
                    await self._play(link, codec, int(words["seed"]))
            except Ended:
                raise
            except (Lost, Refused) as error:
                failure: Exception = error
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    # Before Python 3.13, a TaskGroup that fails swallows its cancellation.
                    raise asyncio.CancelledError from error
            if isinstance(failure, Refused):  # By a trainer, so there is one: it has no place now.
                alone = time.monotonic()
            if is_welcome:
                alone, pause = time.monotonic(), _FIRST_PAUSE
            if 0 < self.patience_seconds < time.monotonic() - alone:
                raise self._given_up(failure) from failure
            if pause == _FIRST_PAUSE:
                self.say(f"waiting for {self.address}: {failure}")
            # Of different lengths, so that a thousand hosts do not come back all at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    @contextlib.asynccontextmanager
    async def _welcomed(self, **more: Any) -> AsyncIterator[tuple[Link, dict[str, Any]]]:
        """A connection that the trainer takes, and what it says."""
        max_bytes = Codec(self.spec).max_bytes
        try:
            async with (
                connected(self.address, self.security, max_bytes) as connection,
                linked(connection) as link,
            ):
                words = {"compress": self.compress, **self.facts, **more}
                link.post(wire.pack(Kind.HELLO, words))
                answer = await link.receive(_ANSWER_SECONDS)
                words = wire.unpack(answer)
                if wire.kind_of(answer) is Kind.REFUSAL:
                    raise Refused(str(words.get("why")), bool(words.get("final")))
                yield link, words
        except WireError as error:
            raise ConfigError(
                f"what answers at {self.address} is no trainer of this version: {error}. Set "
                "--connect to the address of its --listen, and install the same version on both."
            ) from error
        except Refused as error:
            if error.is_final:
                raise ConfigError(str(error)) from error
            raise

    def _given_up(self, why: Exception) -> StallError:
        return StallError(f"no trainer at {self.address}: {why}")

    async def _play(self, link: Link, codec: Codec, seed: int) -> NoReturn:
        """Fresh environments, until the trainer ends the run or is lost, which the link raises."""
        with concurrent.futures.ThreadPoolExecutor(1, "environments") as thread:
            loop = asyncio.get_running_loop()
            player = Player(codec, self.make_env)
            try:
                message = await loop.run_in_executor(thread, player.start, seed)
                while True:
                    link.post(message)
                    answer = await link.receive()
                    message = await loop.run_in_executor(thread, player.step, answer)
            finally:
                await _ending(loop.run_in_executor(thread, player.close))


async def _together(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of ``calls``, and raise the first failure."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _ending(closed: asyncio.Future[None]) -> None:
    """Wait for the environments to be closed; end the process where they never return."""
    give_up, cancelled = time.monotonic() + _HUNG_SECONDS, None
    while not closed.done():
        if (left := give_up - time.monotonic()) <= 0:
            # Nothing else ends a thread. Whoever has started this process can start it again.
            text = f"a step of the environments has not ended after {_HUNG_SECONDS:g} s"
            print(f"sebulba: {text}: this process ends", file=sys.stderr, flush=True)
            os._exit(STALLED)
        try:
            await asyncio.wait((closed,), timeout=left)
        except asyncio.CancelledError as error:  # Each lane that ends cancels the others.
            cancelled = error
    if cancelled is not None:
        raise cancelled
    closed.result()


class Player:
    """One life of a batch of environments; a thread of its own calls all methods."""

    def __init__(self, codec: Codec, make_env: MakeEnv) -> None:
        self._make_env = make_env
        self._codec = codec
        self._check = TimestepCheck(codec.spec)
        self._env: Env | None = None
        self._number = 0

    def start(self, seed: int) -> bytes:
        """Make the environments and reset them; the message of their first timestep."""
        start = time.perf_counter()
        num_envs = self._codec.spec.num_envs
        self._env = self._make_env(num_envs, seed)
        check_spec(self._env.spec, num_envs)
        timestep = self._env.reset()
        self._check.reset(timestep)
        return self._codec.encode_timestep(0, timestep, time.perf_counter() - start)

    def step(self, message: bytes) -> bytes:
        """Step as a message says; the message of the timestep."""
        assert self._env is not None
        start = time.perf_counter()
        action = self._codec.decode_action(message, self._number)
        timestep = self._env.step(action)
        self._check.step(timestep)
        self._number += 1
        return self._codec.encode_timestep(self._number, timestep, time.perf_counter() - start)

    def close(self) -> None:
        """Close the environments, if they were made."""
        if self._env is not None:
            self._env.close()
