"""Messages: what they hold, and that nothing else is taken for one."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from sebulba.envs.base import named_arrays
from sebulba.remote import compression, wire
from sebulba.remote.wire import Codec, Kind, WireError
from sebulba.types import (
    ActionSpec,
    ArraySpec,
    BoxSpec,
    DiscreteSpec,
    EnvSpec,
    MultiDiscreteSpec,
    Timestep,
)

B = 3
PIXELS = ArraySpec((5, 7), np.dtype(np.uint8))
NESTED = {
    "z": ArraySpec((2,), np.dtype(np.float64)),
    "a": {"flag": ArraySpec((), np.dtype(np.bool_)), "none": ArraySpec((0, 4), np.dtype(np.int64))},
    "pixels": PIXELS,
}
BOX = BoxSpec(np.full((2, 2), -1, np.float32), np.ones((2, 2), np.float32))
ACTIONS = [DiscreteSpec(3), MultiDiscreteSpec((2, 5, 3)), BOX]


LZ4 = compression.named("lz4")


def codec(
    observation: Any = NESTED,
    action: ActionSpec = ACTIONS[0],
    compressed: compression.Compression | None = None,
) -> Codec:
    return Codec(EnvSpec(observation, action, B), compressed)


def random_timestep(spec: EnvSpec, rng: np.random.Generator) -> Timestep:
    def draw(told: Any) -> Any:
        if isinstance(told, dict):
            return {name: draw(part) for name, part in told.items()}
        return rng.integers(0, 2, (B, *told.shape)).astype(told.dtype)

    number = rng.random(B).astype(np.float32)
    return Timestep(draw(spec.observation), number, number + 1, rng.random(B) < 0.5)


@pytest.mark.parametrize("compressed", [None, LZ4], ids=["plain", "lz4"])
@pytest.mark.parametrize("observation", [PIXELS, NESTED, {}], ids=["array", "nested", "empty"])
def test_timesteps_come_back_as_they_were(
    observation: Any, compressed: compression.Compression | None
) -> None:
    both = codec(observation, compressed=compressed)
    sent = random_timestep(both.spec, np.random.default_rng(0))
    message = both.encode_timestep(5, sent, 0.25)
    received, seconds = both.decode_timestep(message, 5)
    assert seconds == 0.25
    pairs = zip(named_arrays(sent._asdict()), named_arrays(received._asdict()), strict=True)
    for (name, one), (also, other) in pairs:
        assert (name, one.dtype) == (also, other.dtype)
        np.testing.assert_array_equal(one, other)
        assert not other.flags.writeable


def test_arrays_are_views_of_the_message_in_places_that_numpy_likes() -> None:
    both = codec()
    message = both.encode_timestep(0, random_timestep(both.spec, np.random.default_rng(0)), 0.0)
    base = np.frombuffer(message, np.uint8)
    received, _ = both.decode_timestep(message, 0)
    for _, array in named_arrays(received._asdict()):
        assert not array.size or np.shares_memory(array, base)
        assert array.flags.aligned


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_come_back_as_they_were(action: ActionSpec) -> None:
    both = codec(action=action)
    sent = both.no_action() + 1
    received = both.decode_action(both.encode_action(9, sent), 9)
    assert received.dtype == sent.dtype
    np.testing.assert_array_equal(sent, received)


def test_what_is_sent_in_another_order_of_memory_or_bytes_arrives_right() -> None:
    both = codec(PIXELS)
    zeros = both.no_timestep()
    pixels = np.arange(B * 5 * 7, dtype=">i4").reshape(7, 5, B).T
    message = both.encode_timestep(0, zeros._replace(observation=pixels), 0.0)
    np.testing.assert_array_equal(both.decode_timestep(message, 0)[0].observation, pixels)


def test_what_has_another_shape_is_not_sent() -> None:
    both = codec(PIXELS)
    with pytest.raises(WireError, match=r"shape \(2, 5, 7\), where \(3, 5, 7\) is due"):
        both.encode_timestep(0, both.no_timestep()._replace(observation=np.zeros((2, 5, 7))), 0.0)


def test_arrays_of_objects_cannot_be_sent() -> None:
    with pytest.raises(WireError, match="arrays of object cannot be sent"):
        codec(ArraySpec((), np.dtype(object)))


MESSAGE = codec().encode_action(4, codec().no_action())


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "0 bytes"),
        (MESSAGE[:23], "23 bytes, which are fewer than a header has"),
        (b"GET " + MESSAGE[4:], "does not begin"),
        (MESSAGE[:4] + b"\2\0" + MESSAGE[6:], "version 2 of the wire, and this side has 1"),
        (MESSAGE[:6] + b"\xff\0" + MESSAGE[8:], "kind 255"),
        (codec().encode_action(3, codec().no_action()), "ACTION 3, where ACTION 4 is due"),
        (wire.pack(Kind.HELLO, {}), "HELLO 0, where ACTION 4"),
        (MESSAGE + b"\0", "41 bytes, where 40 are due"),
        (MESSAGE[:-1], "39 bytes, where 40 are due"),
        (MESSAGE[:16] + b"\xff" * 8 + MESSAGE[24:], "nan seconds"),
    ],
)
def test_other_messages_are_refused(message: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        codec().decode_action(message, 4)


def test_a_bool_of_other_bits_is_refused() -> None:
    both = codec(PIXELS)
    message = bytearray(both.encode_timestep(0, both.no_timestep(), 0.0))
    message[-8] = 2  # The first of the B flags, which are padded.
    with pytest.raises(WireError, match="a bool that is neither 0 nor 1"):
        both.decode_timestep(bytes(message), 0)


FRAME = ArraySpec((84, 84), np.dtype(np.uint8))


def test_only_what_becomes_shorter_is_compressed() -> None:
    plain, both = codec(FRAME), codec(FRAME, compressed=LZ4)
    still = both.no_timestep()
    noise = np.random.default_rng(0).integers(0, 256, (B, 84, 84), np.uint8)
    shorter, longer = (each.encode_timestep(0, still, 0.0) for each in (both, plain))
    assert 40 * len(shorter) < len(longer)
    noisy = still._replace(observation=noise)
    assert both.encode_timestep(0, noisy, 0.5) == plain.encode_timestep(0, noisy, 0.5)
    assert both.encode_action(0, both.no_action()) == plain.encode_action(0, both.no_action())


def packed(nbytes: int) -> bytes:
    """A timestep whose arrays are a block of lz4, of ``nbytes`` zeros."""
    assert LZ4 is not None
    return codec(FRAME).encode_timestep(0, codec(FRAME).no_timestep(), 0.0)[:24] + LZ4.compress(
        bytes(nbytes)
    )


DUE = len(codec(FRAME).encode_timestep(0, codec(FRAME).no_timestep(), 0.0)) - 24


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (packed(DUE - 1), f"{DUE + 23:,} bytes, where {DUE + 24:,} are due"),
        (packed(DUE + 1), "not compressed as agreed"),
        (packed(DUE)[:-1], "not compressed as agreed"),
        (packed(DUE)[:24], "not compressed as agreed"),
        (packed(DUE) + b"\0", "not compressed as agreed"),
    ],
    ids=["short", "long", "cut", "none", "more"],
)
def test_what_does_not_decompress_to_what_is_due_is_refused(message: bytes, says: str) -> None:
    both = codec(FRAME, compressed=LZ4)
    both.decode_timestep(packed(DUE), 0)
    with pytest.raises(WireError, match=says):
        both.decode_timestep(message, 0)
    with pytest.raises(WireError, match="bytes, where"):
        codec(FRAME).decode_timestep(packed(DUE), 0)


def test_a_bomb_takes_no_more_memory_than_what_is_due() -> None:
    bomb = packed(1 << 28)
    both = codec(ArraySpec((840, 840), np.dtype(np.uint8)), compressed=LZ4)
    assert len(bomb) < both.max_bytes
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="not compressed as agreed"):
            both.decode_timestep(bomb, 0)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * both.max_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compressed", [None, LZ4], ids=["plain", "lz4"])
def test_random_and_damaged_messages_raise_nothing_else(
    compressed: compression.Compression | None,
) -> None:
    """Whatever is taken has every bit that decides about its form as it should be."""
    rng = np.random.default_rng(0)
    both = codec({**NESTED, "frame": FRAME}, compressed=compressed)
    right = both.encode_timestep(7, random_timestep(both.spec, rng), 0.5)
    refused = 0
    for number in range(10_000):
        if number % 4 == 0:
            message = rng.bytes(int(rng.integers(0, 2 * len(right))))
        else:
            message = bytearray(right)
            for _ in range(rng.integers(1, 4)):
                message[rng.integers(len(right) if number % 4 > 1 else 24)] = rng.integers(256)
            message = bytes(message[: rng.integers(len(right))] if number % 4 == 3 else message)
        try:
            timestep, _ = both.decode_timestep(message, 7)
            assert timestep.first.view(np.uint8).max() <= 1
            assert compressed or len(message) == len(right)
        except WireError:
            refused += 1
        try:
            assert isinstance(wire.unpack(message), dict)
        except WireError:
            refused += 1
    assert 10_000 < refused < 20_000


def test_words_come_back() -> None:
    words = {"a": "\N{SNOWMAN}", "b": 1}
    message = wire.pack(Kind.HELLO, words)
    assert wire.kind_of(message) is Kind.HELLO
    assert wire.unpack(message) == words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff\xfe", "no JSON"),
        (b"[" * 60_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (json.dumps({"a": "b" * wire.MAX_WORDS}).encode(), "65,536 are the limit"),
    ],
    ids=["bytes", "deep", "list", "long"],
)
def test_other_words_are_refused(text: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        wire.unpack(wire.pack(Kind.HELLO) + text)
