"""Ask the TPU compiler whether it accepts learner meshes, in a child process that may crash.

For some meshes the compiler aborts its process instead of raising an error, and some meshes work
only for small arrays. So a child process compiles a mean over arrays as large as gradients get.
Started as ``python -m sebulba.devices.mesh_probe GENERATION SHAPE CHIPS_PER_HOST COUNT...``, it
prints a line of JSON for each COUNT: the number of devices of a host that only act, or 0 if all
devices act and learn.
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
"""Sizes of gradients to try: 32 KB, 4 MB and 32 MB of float32. The compiler chooses its all-reduce
algorithm by size."""
TIMEOUT = 600
"""Seconds for one child process."""


class CannotAsk(RuntimeError):
    """The compiler cannot be asked at all."""


def ask(tpu_slice: tpu_slices.Slice, counts: Sequence[int]) -> dict[int, str | None]:
    """Why the compiler refuses the learner mesh of each split; None if it accepts it.

    Args:
      tpu_slice: the slice whose devices are split.
      counts: devices of each host that only act; 0 if all act and learn.

    Raises:
      CannotAsk: libtpu is missing, does not know the slice or takes too long.
    """
    answers: dict[int, str | None] = {}
    while rest := [count for count in counts if count not in answers]:
        lines, error = _child(tpu_slice, rest)
        if not lines:
            raise CannotAsk(error or "the compiler's process gave no answer")
        # The first line only says that the compiler could be loaded.
        answers.update((count, why) for count, why in lines[1:])
        unanswered = [count for count in rest if count not in answers]
        if unanswered:
            # Questions are answered in order, so the first one without an answer made the process
            # abort. A new process gets the rest.
            answers[unanswered[0]] = f"the compiler aborts: {error or 'no reason given'}"
    return answers


def _child(tpu_slice: tpu_slices.Slice, counts: Sequence[int]) -> tuple[list[tuple[int, str]], str]:
    chips = tpu_slice.chips_per_host
    words = [tpu_slice.generation.name, tpu_slice.shape, chips, *counts]
    # So that the child finds this package even if it is not installed.
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    try:
        result = subprocess.run(
            [sys.executable, "-m", "sebulba.devices.mesh_probe", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            # The child compiles for devices that it only has descriptions of. It must not open this
            # machine's TPU, which this process may be using.
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return [], f"the compiler gave no answer in {TIMEOUT} s"
    # Only the answers, in case a library prints something too.
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
    """Compile a mean over the learner mesh, the only communication of an update."""
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
