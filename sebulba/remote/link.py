"""A connection on which silence means that the other side is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sebulba.remote.transport import Connection, Lost
from sebulba.remote.wire import Kind, WireError, kind_of, pack

BEAT_SECONDS = 2.0
"""A side that has nothing to say says so as often."""
SILENT_SECONDS = 8.0
"""A side that is not heard of for so long is gone: its network, its machine or its process."""


class Ended(Lost):
    """The other side has said that the run is complete."""


class Link:
    """One side of a conversation in which both take turns. Made by ``linked``."""

    # The heartbeats are the link's own, not the transport's: gRPC's server does not notice a
    # process that is stopped while its kernel still answers.

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        # Of one message: whoever sends a second before the first was answered breaks the rules.
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)

    def post(self, message: bytes) -> None:
        """Have a message sent."""
        self._outbox.put_nowait(message)

    async def receive(self, seconds: float | None = None) -> bytes:
        """Wait for the next message that is no heartbeat.

        Args:
          seconds: how long; None for as long as the other side is there.

        Raises:
          Lost: none has come.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._inbox.get()
        except TimeoutError as error:
            raise Lost(f"no answer for {seconds:g} s") from error

    async def read(self) -> None:
        """Take messages in until the connection ends."""
        while True:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    message = await self._connection.receive()
            except TimeoutError as error:
                raise Lost(f"not heard of for {SILENT_SECONDS:g} s") from error
            if kind_of(message) is Kind.HEARTBEAT:
                continue
            if kind_of(message) is Kind.END:
                raise Ended("it says that the run is complete")
            try:
                self._inbox.put_nowait(message)
            except asyncio.QueueFull as error:
                raise WireError("a message out of turn") from error

    async def write(self) -> None:
        """Send what is posted, and a heartbeat where that is nothing, until the connection ends."""
        while True:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    message = await self._outbox.get()
            except TimeoutError:
                await self._connection.send(pack(Kind.HEARTBEAT))
                continue
            await self._connection.send(message)


@contextlib.asynccontextmanager
async def linked(connection: Connection) -> AsyncIterator[Link]:
    """A link by ``connection``. Where that ends, what runs inside the context is cancelled.

    Raises:
      Ended: so has the run.
      Lost: the connection has ended.
      WireError: the other side has sent what is no message.
      Exception: the first that was raised inside.
    """
    link = Link(connection)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(link.read()), group.create_task(link.write())]
            yield link
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
