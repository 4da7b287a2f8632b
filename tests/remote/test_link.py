"""Conversations that take turns, and what silence and strangers do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sebulba.remote import link as links
from sebulba.remote.link import Link, linked
from sebulba.remote.transport import Lost
from sebulba.remote.wire import Kind, WireError, kind_of, pack

HELLO, ACTION = pack(Kind.HELLO), pack(Kind.ACTION)


class Queues:
    """One end of a connection within this process."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, message: bytes) -> None:
        await self.sent.put(message)

    async def receive(self) -> bytes:
        message = await self.incoming.get()
        if not message:
            raise Lost("closed")
        return message


def talk(script: Callable[[Link, Queues], Awaitable[None]]) -> None:
    async def run() -> None:
        ends = Queues()
        async with linked(ends) as link:
            await script(link, ends)

    asyncio.run(run())


def test_silence_is_noticed_within_ten_seconds() -> None:
    assert 2 * links.BEAT_SECONDS < links.SILENT_SECONDS < 10


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_side_with_nothing_to_say_says_so() -> None:
    async def script(link: Link, ends: Queues) -> None:
        for _ in range(3):
            assert kind_of(await ends.sent.get()) is Kind.HEARTBEAT
        link.post(HELLO)
        while (message := await ends.sent.get()) != HELLO:
            assert kind_of(message) is Kind.HEARTBEAT

    talk(script)


@pytest.mark.usefixtures("impatient")
def test_a_side_that_is_silent_is_gone() -> None:
    async def script(link: Link, ends: Queues) -> None:
        await asyncio.sleep(10)

    with pytest.raises(Lost, match=r"not heard of for 0\.5 s"):
        talk(script)


@pytest.mark.usefixtures("impatient")
def test_heartbeats_keep_a_link_but_are_no_answer() -> None:
    async def script(link: Link, ends: Queues) -> None:
        for _ in range(8):
            await asyncio.sleep(0.1)
            ends.incoming.put_nowait(pack(Kind.HEARTBEAT))
        ends.incoming.put_nowait(ACTION)
        assert await link.receive() == ACTION
        await link.receive(0.1)

    with pytest.raises(Lost, match=r"no answer for 0\.1 s"):
        talk(script)


def test_the_end_of_a_connection_ends_what_waits() -> None:
    async def script(link: Link, ends: Queues) -> None:
        ends.incoming.put_nowait(b"")
        await asyncio.Event().wait()

    with pytest.raises(Lost, match="closed"):
        talk(script)


@pytest.mark.parametrize(
    ("messages", "says"),
    [([ACTION, ACTION], "out of turn"), ([b"GET / HTTP/1.1\r\n" * 3], "does not begin")],
)
def test_who_breaks_the_rules_is_dropped(messages: list[bytes], says: str) -> None:
    async def script(link: Link, ends: Queues) -> None:
        for message in messages:
            ends.incoming.put_nowait(message)
        await asyncio.Event().wait()

    with pytest.raises(WireError, match=says):
        talk(script)


def test_what_is_raised_inside_comes_out() -> None:
    async def script(link: Link, ends: Queues) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        talk(script)
