"""Ask the TPU compiler about learner meshes, in a process that may die of the question.

For some meshes the compiler neither succeeds nor fails but aborts its process, and some it takes
for small arrays only. So a child is asked, about a mean over arrays as large as gradients get.
Started as ``python -m sebulba.devices.mesh_probe GENERATION SHAPE CHIPS_PER_HOST COUNT...`` it
prints a line of JSON for each COUNT of acting devices of a host, 0 where all act and learn.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sebulba.devices import tpu_slices
from sebulba.devices.compiler import Refused, compile_
from sebulba.devices.topology import LEARNER_AXIS, Topology

SIZES = (2**13, 2**20, 2**23)
"""Numbers in a gradient: 32 KB, 4 MB and 32 MB. The compiler's algorithm depends on it."""
TIMEOUT = 600


class CannotAsk(RuntimeError):
    """The compiler gives no answer to anything."""


def ask(tpu_slice: tpu_slices.Slice, counts: Sequence[int]) -> dict[int, str | None]:
    """For each number of acting devices, why its learner mesh is refused; None where it is not.

    Raises:
      CannotAsk: libtpu is missing or does not know the slice.
    """
    answers: dict[int, str | None] = {}
    while rest := [count for count in counts if count not in answers]:
        lines, error = _child(tpu_slice, rest)
        if not lines:
            raise CannotAsk(error or "the compiler's process gave no answer")
        answers.update((count, why) for count, why in lines[1:])
        unanswered = [count for count in rest if count not in answers]
        if unanswered:
            # The process died of the first question that it did not answer.
            answers[unanswered[0]] = f"the compiler aborts: {error or 'no reason given'}"
    return answers


def _child(tpu_slice: tpu_slices.Slice, counts: Sequence[int]) -> tuple[list[tuple[int, str]], str]:
    chips = tpu_slice.chips_per_host
    words = [tpu_slice.generation.name, tpu_slice.shape, chips, *counts]
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    try:
        result = subprocess.run(
            [sys.executable, "-m", "sebulba.devices.mesh_probe", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return [], f"the compiler gave no answer in {TIMEOUT} s"
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    check = re.search(r"Check failed: .*", result.stderr)
    last = result.stderr.strip().rpartition("\n")[2]
    return lines, check.group().strip() if check else last


def _answers(
    tpu_slice: tpu_slices.Slice, counts: Sequence[int]
) -> Iterator[tuple[int, str | None]]:
    devices = tpu_slices.devices(tpu_slice)
    yield -1, None  # The compiler is there.
    for count in counts:
        topology = Topology.split(count, devices) if count else Topology.shared(devices)
        yield count, next(filter(None, (_refusal(topology, size) for size in SIZES)), None)


def _refusal(topology: Topology, size: int) -> str | None:
    """Compile the mean over the learner mesh, the one thing that crosses its devices."""
    mean = jax.shard_map(
        lambda x: lax.pmean(x, LEARNER_AXIS),
        mesh=topology.mesh,
        in_specs=PartitionSpec(LEARNER_AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    sharding = NamedSharding(topology.mesh, PartitionSpec(LEARNER_AXIS))
    x = jax.ShapeDtypeStruct((topology.mesh.size, size), jnp.float32, sharding=sharding)
    try:
        compile_(jax.jit(mean).lower(x))
    except Refused as refused:
        return str(refused)
    return None


if __name__ == "__main__":
    generation, shape, chips_per_host, *asked = sys.argv[1:]
    for answer in _answers(
        tpu_slices.of(generation, shape, int(chips_per_host)),
        [int(count) for count in asked],
    ):
        print(json.dumps(answer), flush=True)
