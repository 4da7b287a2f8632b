"""How messages travel: streams of gRPC, one for each lane, behind an interface of two methods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

# Else every stranger could have gRPC write to the log. It is read once, at the first import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from sebulba.remote.handshake import Refused
from sebulba.remote.security import Security
from sebulba.validation import ConfigError

# It warns of every stream that ends with the server.
logging.getLogger("grpc._cython.cygrpc").setLevel(logging.ERROR)

_SERVICE, _METHOD = "sebulba.Lanes", "Lane"
_TOKEN = "sebulba-token"
_HANDSHAKE_MS = 10_000
"""How long a connection may take to become one of TLS and HTTP/2."""
_WRONG_TOKEN = "the token is not the trainer's: give both the same --token-file."


class Lost(ConnectionError):
    """The other side is gone, or cannot be reached."""


class Connection(Protocol):
    """Messages to and from one other side, in order. One task sends and one receives."""

    async def send(self, message: bytes) -> None:
        """Send a message; waits while the other side does not read.

        Raises:
          Lost: the connection has ended.
        """

    async def receive(self) -> bytes:
        """Wait for the next message.

        Raises:
          Lost: the connection has ended.
        """


Handle = Callable[[Connection, str], Awaitable[None]]
"""``handle(connection, peer)`` serves one connection of ``peer``, an address, until it ends."""
Complain = Callable[[str, str], None]
"""``complain(peer, why)`` notes that ``peer`` was rejected."""


class _Stream:
    """One stream of gRPC, seen from either side."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: bytes) -> None:
        with _losses():
            await self._stream.write(message)

    async def receive(self) -> bytes:
        with _losses():
            message = await self._stream.read()
        if message is grpc.aio.EOF:
            raise Lost("the connection was closed")
        found: bytes = message
        return found


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """Raise what gRPC raises at the end of a stream as what it is here."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise Refused(error.details() or "", is_final=True) from error
        raise Lost(f"{error.code().name}: {error.details()}") from error
    except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
        raise Lost("the connection has ended") from error
    except asyncio.CancelledError as error:
        # gRPC raises it too, where the stream was cancelled and not this task.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Lost("the connection was cancelled") from error


@contextlib.asynccontextmanager
async def listening(
    address: str,
    security: Security,
    handle: Handle,
    complain: Complain,
    max_bytes: int,
    max_streams: int,
    grace: float,
) -> AsyncIterator[int]:
    """Serve connections inside the context; gives the port.

    Args:
      address: HOST:PORT; port 0 is any that is free.
      security: the certificate, and the token that others must have.
      handle: serves each of those that have it.
      complain: is told of those that do not.
      max_bytes: of a message; longer ones end their connection.
      max_streams: of one connection of TCP.
      grace: seconds that connections have to end when the context does.

    Raises:
      ConfigError: nothing can listen there.
    """

    async def serve(_: Any, context: Any) -> None:
        given = dict(context.invocation_metadata()).get(_TOKEN, "")
        if not security.takes(given):
            complain(context.peer(), "wrong token")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _WRONG_TOKEN)
        await handle(_Stream(context), context.peer())

    server = _server(serve, max_bytes, max_streams)
    try:
        if credentials := security.of_server():
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
        await server.start()
    except RuntimeError as error:
        raise ConfigError(
            f"nothing can listen at {address} ({error}): choose another port, and an address of "
            "this machine or 0.0.0.0, with --listen."
        ) from error
    try:
        yield port
    finally:
        await server.stop(grace)
        # Events that come when the loop is closed would be lost with those for other loops.
        await asyncio.sleep(0.1)


def _server(serve: Callable[[Any, Any], Awaitable[None]], max_bytes: int, max_streams: int) -> Any:
    """A server of gRPC that answers each stream with ``serve``, and listens nowhere yet."""
    server = grpc.aio.server(
        options=[
            *_sizes(max_bytes),
            ("grpc.max_concurrent_streams", max_streams),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.so_reuseport", 0),  # Two trainers must not share a port without a word.
        ]
    )
    methods = {_METHOD: grpc.stream_stream_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    return server


@contextlib.asynccontextmanager
async def connected(address: str, security: Security, max_bytes: int) -> AsyncIterator[Connection]:
    """A connection to the trainer at ``address``, HOST:PORT, which ends with the context.

    It is made by the first message; what is wrong with it is raised there.
    """
    # A connection of TCP for each lane, which waits for no other, nor after another's failure.
    options = [*_sizes(max_bytes), ("grpc.use_local_subchannel_pool", 1)]
    if credentials := security.of_client():
        channel = grpc.aio.secure_channel(address, credentials, options)
    else:
        channel = grpc.aio.insecure_channel(address, options)
    async with channel:
        metadata = [(_TOKEN, security.token)] if security.token else None
        call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(metadata=metadata)
        try:
            yield _Stream(call)
        finally:
            call.cancel()


def _sizes(max_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
    ]
