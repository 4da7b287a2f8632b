"""What XLA says about a program: what it costs, or why it does not compile."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from typing import Any

import jax

# Of the types that programs have here; others count as 4 bytes.
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4, "bf16": 2, "f16": 2}
# An asynchronous operation is a pair, such as all-reduce-start and all-reduce-done: only the start
# matches, so that it counts once.
_COLLECTIVE = re.compile(
    r"= (?P<type>\(.*?\)|\S+) (?P<name>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute)(-start)?\("
)
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_REASON_LENGTH = 110


class Refused(Exception):
    """The program does not compile for its devices; the message is the reason, in one line."""


@dataclasses.dataclass(frozen=True)
class Program:
    """What one call of a compiled program costs each device.

    Attributes:
      flops: floating-point operations, by XLA's count.
      bytes: bytes read and written, by XLA's count, most of them in the device's memory.
      hbm: peak memory of the device in bytes: arguments, results, temporaries and code.
      all_reduce_bytes: bytes of the arrays that are summed over the devices.
      collectives: number of operations of each kind of communication between devices.
      seconds: time that compiling took.
    """

    flops: float
    bytes: float
    hbm: int
    all_reduce_bytes: int
    collectives: dict[str, int]
    seconds: float

    def times(self, count: int) -> Program:
        """The cost of ``count`` calls in a row."""
        # The peak of memory is about that of one call, since each reuses what the last one freed.
        return dataclasses.replace(
            self,
            flops=self.flops * count,
            bytes=self.bytes * count,
            all_reduce_bytes=self.all_reduce_bytes * count,
            collectives={name: n * count for name, n in self.collectives.items()},
        )

    def then(self, other: Program) -> Program:
        """The cost of this program and then ``other``, which reuses its memory."""
        names = sorted({*self.collectives, *other.collectives})
        return Program(
            self.flops + other.flops,
            self.bytes + other.bytes,
            max(self.hbm, other.hbm),
            self.all_reduce_bytes + other.all_reduce_bytes,
            {n: self.collectives.get(n, 0) + other.collectives.get(n, 0) for n in names},
            self.seconds + other.seconds,
        )


def inspect(lowered: jax.stages.Lowered) -> Program:
    """Compile a program and return what it costs.

    Raises:
      Refused: it does not compile for its devices.
    """
    start = time.perf_counter()
    compiled = compile_(lowered)
    seconds = time.perf_counter() - start
    cost = compiled.cost_analysis() or {}
    memory: Any = compiled.memory_analysis()
    # Donated arguments share their memory with results, so they are counted twice and taken off.
    hbm = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    collectives = find_collectives(compiled.as_text() or "")
    counts: dict[str, int] = {}
    for name, _ in collectives:
        counts[name] = counts.get(name, 0) + 1
    return Program(
        flops=float(cost.get("flops", 0.0)),
        bytes=float(cost.get("bytes accessed", 0.0)),
        hbm=int(hbm),
        all_reduce_bytes=sum(size for name, size in collectives if name == "all-reduce"),
        collectives=counts,
        seconds=seconds,
    )


def compile_(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program.

    Raises:
      Refused: it does not compile for its devices.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise Refused(reason(str(error))) from error


def reason(message: str) -> str:
    """One line that says why, from the many of a compiler's message."""
    line = next((line for line in message.splitlines() if line.strip()), "no reason given")
    # "RET_CHECK failure (file:line) condition sentence": only the sentence is for people to read.
    check = re.search(r"RET_CHECK failure \([^)]*\) (?P<rest>.*)", line)
    if check:
        line = check["rest"]
        sentence = re.search(r"[ )](?P<text>[A-Z][a-z]+ .*)", line)
        line = sentence["text"] if sentence else line
    # Long lists of numbers, such as the ids of all devices, would push out the rest.
    line = re.sub(r"\(\d+(,\d+){3,}\)", "(...)", line).strip()
    return line if len(line) <= _REASON_LENGTH else f"{line[: _REASON_LENGTH - 3]}..."


def find_collectives(text: str) -> list[tuple[str, int]]:
    """The collective operations in a compiled program's text: kind and bytes of each result."""
    return [(match["name"], _size(match["type"])) for match in _COLLECTIVE.finditer(text)]


def _size(type_: str) -> int:
    return sum(
        _BYTES.get(kind, 4) * math.prod(int(side) for side in sides.split(",") if side)
        for kind, sides in _ARRAY.findall(type_)
    )
