"""The trainer's side: who connects, which lane it gets, and what it may do."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NoReturn

from sebulba.remote import compression, wire
from sebulba.remote.handshake import Facts, difference
from sebulba.remote.lanes import Lane, LaneCounts, Life, RemoteEnv
from sebulba.remote.link import Link, linked
from sebulba.remote.security import Security
from sebulba.remote.transport import Connection, Lost, listening
from sebulba.remote.wire import Codec, Kind, WireError
from sebulba.types import EnvSpec, MakeEnv

HANDSHAKE_SECONDS = 10.0
"""How long a stranger may take to say who it is."""
_COMPLAINT_SECONDS = 10.0
"""Strangers are told of once in so long."""
_MEASURE_SECONDS = 60.0
_SPARE_STREAMS = 8
_CLOSE_SECONDS = 3.0


class Listener:
    """Takes connections of env-hosts in a thread of its own, and gives each a free lane."""

    def __init__(
        self,
        address: str,
        security: Security,
        facts: Facts,
        spec: EnvSpec,
        lanes: Sequence[int],
        *,
        step_seconds: float,
        ends_run: bool,
    ) -> None:
        """Nothing listens before ``open``.

        Args:
          address: HOST:PORT.
          security: what env-hosts must show.
          facts: what they must agree with.
          spec: of the environments of one lane.
          lanes: numbers of the actors that step remote environments.
          step_seconds: an env-host that takes longer for a step is dropped.
          ends_run: whether the loss of a lane ends the run.
        """
        self._address = address
        self._security = security
        self._facts = facts
        self._codec = Codec(spec)
        self._lanes = {number: Lane(number) for number in lanes}
        self._step_seconds = step_seconds
        self._ends_run = ends_run
        self._streams: collections.Counter[str] = collections.Counter()
        self._news: collections.deque[str] = collections.deque(maxlen=100)
        self._complaints = _Complaints()
        self._before = {number: LaneCounts() for number in lanes}
        self._measured = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._opened: concurrent.futures.Future[int] = concurrent.futures.Future()
        # Made by ``open``, and run in the listener's thread.
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Future[bool]

    def open(self) -> int:
        """Listen from now on; returns the port.

        Raises:
          ConfigError: nothing can listen at the address.
        """
        self._loop = asyncio.new_event_loop()
        self._closing = self._loop.create_future()
        self._thread.start()
        port = self._opened.result()
        self._news.append(f"listening at {self._address} for {len(self._lanes)} remote lanes")
        return port

    def make_env(self, lane: int) -> MakeEnv:
        """Makes the environments of ``lane``."""

        def make_env(num_envs: int, seed: int) -> RemoteEnv:
            return RemoteEnv(self._lanes[lane], self._codec.spec, seed, self._ends_run)

        return make_env

    def connected(self) -> int:
        """Lanes that have an env-host now."""
        return sum(lane.life is not None for lane in self._lanes.values())

    def news(self) -> Iterator[str]:
        """Lines about who came and went since the last call."""
        while self._news:
            yield self._news.popleft()
        yield from self._complaints.lines()

    def metrics(self) -> dict[str, float]:
        """What the lanes did since the last call."""
        now = time.monotonic()
        elapsed, self._measured = now - self._measured, now
        row: dict[str, float] = {"remote_lanes": self.connected()}
        for number, lane in self._lanes.items():
            counts, before = dataclasses.replace(lane.counts), self._before[number]
            self._before[number] = counts
            row |= _lane_metrics(number, counts, before, elapsed)
        return row

    def shutdown(self) -> None:
        """Wake the actors of all lanes with ``ShutDown``; may be called from any thread."""
        for lane in self._lanes.values():
            lane.shutdown()

    def close(self, is_complete: bool) -> None:
        """End, and let go of all env-hosts. Once it has, it may be called again.

        Args:
          is_complete: whether the run is over, which ends them too. Otherwise they wait for the
            trainer that goes on with it.
        """
        self.shutdown()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set_result, is_complete)
            self._thread.join(2 * _CLOSE_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._listen())
            except Exception as error:
                if self._opened.done():
                    raise
                self._opened.set_exception(error)

    async def _listen(self) -> None:
        async with listening(
            self._address,
            self._security,
            self._serve,
            self._complaints.add,
            self._codec.max_bytes,
            max_streams=len(self._lanes) + _SPARE_STREAMS,
            grace=_CLOSE_SECONDS,
        ) as port:
            self._opened.set_result(port)
            await self._closing

    async def _serve(self, connection: Connection, peer: str) -> None:
        visit, why = _Visit(peer), "the trainer has ended it"
        try:
            with self._one_more_of(peer):
                async with linked(connection) as link:
                    await self._answer(link, visit)
        except (Lost, WireError) as error:
            why = visit.refused or str(error)
            if visit.lane is None:
                self._complaints.add(peer, why)
        finally:
            if visit.lane is not None:
                visit.lane.end(why)
                self._tell(f"lane {visit.lane.number} is lost: {peer}: {why}")

    @contextlib.contextmanager
    def _one_more_of(self, peer: str) -> Iterator[None]:
        """Count the streams of one address, of which there may be as many as lanes and a few."""
        host = peer.rpartition(":")[0]
        if self._streams[host] >= len(self._lanes) + _SPARE_STREAMS:
            raise WireError("too many connections at once")
        self._streams[host] += 1
        try:
            yield
        finally:
            self._streams[host] -= 1
            if not self._streams[host]:
                del self._streams[host]

    async def _answer(self, link: Link, visit: _Visit) -> None:
        hello = await link.receive(HANDSHAKE_SECONDS)
        if wire.kind_of(hello) is not Kind.HELLO:
            raise WireError("it does not say hello")
        words = wire.unpack(hello)
        is_measuring = words.pop("measure", False) is True
        compress = words.pop("compress", "none")
        if why := difference(self._facts, words) or compression.problem(compress):
            visit.refused = why
            await _refuse(link, why, is_final=True)
        elif is_measuring:
            await self._be_measured(link)
        elif (lane := self._free_lane()) is None:
            visit.refused = "the trainer has no free lane"
            await _refuse(link, visit.refused, is_final=False)
        else:
            codec = Codec(self._codec.spec, compression.named(compress))
            life, seed = lane.begin(visit.peer, codec)
            visit.lane = lane
            self._tell(f"lane {lane.number} is connected: {visit.peer}")
            link.post(wire.pack(Kind.WELCOME, {"lane": lane.number, "seed": seed}))
            await self._until_closed(link, self._alternate(link, life))

    def _free_lane(self) -> Lane | None:
        return next((lane for lane in self._lanes.values() if lane.is_free()), None)

    async def _alternate(self, link: Link, life: Life) -> NoReturn:
        """A timestep, an action, a timestep, until either side is lost."""
        while True:
            life.deliver(await link.receive(self._step_seconds))
            # However long it takes: an env-host waits for a trainer that is slow.
            link.post(await life.action())

    async def _until_closed(self, link: Link, talk: Coroutine[Any, Any, NoReturn]) -> NoReturn:
        """Run ``talk``; at the end of the run say so at once, since a step may be long."""
        talking = asyncio.create_task(talk)
        try:
            await asyncio.wait((talking, self._closing), return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                await talking  # Raises.
        finally:
            talking.cancel()
        if self._closing.result():
            await _say_last(link, wire.pack(Kind.END))
        raise Lost("the run ends")

    async def _be_measured(self, link: Link) -> None:
        """Answer timesteps with actions that nobody chose."""
        link.post(wire.pack(Kind.WELCOME, {}))
        number, answer = 0, self._codec.no_action()
        with contextlib.suppress(Lost):
            async with asyncio.timeout(_MEASURE_SECONDS):
                while True:
                    self._codec.decode_timestep(await link.receive(HANDSHAKE_SECONDS), number)
                    link.post(self._codec.encode_action(number, answer))
                    number += 1

    def _tell(self, text: str) -> None:
        if not self._closing.done():
            self._news.append(f"{text} ({self.connected()} of {len(self._lanes)})")


@dataclasses.dataclass
class _Visit:
    """A connection, the lane that it has got, and why it has got none."""

    peer: str
    lane: Lane | None = None
    refused: str = ""


async def _refuse(link: Link, why: str, is_final: bool) -> NoReturn:
    await _say_last(link, wire.pack(Kind.REFUSAL, {"why": why, "final": is_final}))


async def _say_last(link: Link, message: bytes) -> NoReturn:
    """Send a message after which the other side closes the connection.

    If this side did, the other might see the end before it has looked at the message.

    Raises:
      Lost: it has done so, or has not within seconds.
    """
    link.post(message)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            while True:  # A timestep may be on its way.
                await link.receive()
    raise Lost("it has not closed the connection after the last word")


class _Complaints:
    """Rejected connections, in one line every few seconds however many there are."""

    def __init__(self) -> None:
        self._count = 0
        self._last = ""
        self._due = 0.0

    def add(self, peer: str, why: str) -> None:
        """Note one."""
        self._count, self._last = self._count + 1, f"{peer}: {why}"

    def lines(self) -> Iterator[str]:
        """A line about those since the last line, if it is time for one."""
        if self._count and time.monotonic() >= self._due:
            count, self._count = self._count, 0
            self._due = time.monotonic() + _COMPLAINT_SECONDS
            yield f"rejected {count} connection(s), the last from {self._last}"


def _lane_metrics(
    number: int, now: LaneCounts, before: LaneCounts, elapsed: float
) -> dict[str, float]:
    trips = max(1, now.round_trips - before.round_trips)
    elapsed = max(elapsed, 1e-9)
    return {
        f"remote_lane_{number}_{name}": value
        for name, value in {
            "steps_per_second": (now.steps - before.steps) / elapsed,
            "bytes_per_second": (now.nbytes - before.nbytes) / elapsed,
            "round_trip_seconds": (now.network_seconds - before.network_seconds) / trips,
            "environment_seconds": (now.environment_seconds - before.environment_seconds) / trips,
            "trainer_seconds": (now.trainer_seconds - before.trainer_seconds) / trips,
            "reconnections": max(0, now.lives - 1),
        }.items()
    }
