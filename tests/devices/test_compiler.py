"""What is read off the compiler."""

from __future__ import annotations

import pytest

from sebulba.devices.compiler import find_collectives, reason


def test_collectives_are_read_off_the_text() -> None:
    text = """
  %all-reduce.3 = (f32[18]{0:T(256)}, /*index=1*/f32[256,18]{0,1:T(8,128)}) all-reduce(%a, %b)
  %get-tuple-element.4 = f32[18]{0} get-tuple-element(%all-reduce.3), index=0
  %all-gather.1 = bf16[4,8]{1,0} all-gather(%c), dimensions={0}
  %all-reduce-start.1 = f32[2]{0} all-reduce-start(%d)
"""
    found = [("all-reduce", 4 * (18 + 256 * 18)), ("all-gather", 2 * 32), ("all-reduce", 8)]
    assert find_collectives(text) == found


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "INTERNAL: RET_CHECK failure (a/b.cc:1879) count == target(kCore) On platforms with "
            "limited routing include all\n\nmore",
            "On platforms with limited routing include all",
        ),
        (
            "INTERNAL: RET_CHECK failure (a/net.cc:23) id < kMax Unexpected device_id 12 [0:4] in "
            "replica group (0,1,2,3,4,5)",
            "Unexpected device_id 12 [0:4] in replica group (...)",
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory", "RESOURCE_EXHAUSTED: Ran out of memory"),
        ("x" * 500, "x" * 107 + "..."),
    ],
)
def test_a_reason_is_one_short_line(message: str, line: str) -> None:
    assert reason(message) == line
