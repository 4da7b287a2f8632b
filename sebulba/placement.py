"""Which devices act and which learn: the wanted split, or the nearest one that works.

The TPU compiler refuses some meshes that leave out devices of a slice, so it is asked about the
very mesh before anything is built on it. On other platforms any mesh works.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sebulba.compiler import Refused, compile_
from sebulba.config import Config, ConfigError, R2D2Config
from sebulba.topology import LEARNER_AXIS, Topology

Ask = Callable[[Topology], str | None]
"""Why the learner mesh of a topology does not work; None where it does."""


class Placement(NamedTuple):
    """The roles of the devices, and a line where they are not those asked for."""

    topology: Topology
    note: str | None


def choose(
    config: Config, devices: Sequence[jax.Device] | None = None, ask: Ask | None = None
) -> Placement:
    """The topology that ``config`` wants, the nearest one that works, or ``Topology.shared``.

    Only placements whose learners divide the batch are taken in its place.

    Args:
      config: wants ``num_inference`` acting devices on each host.
      devices: devices of all hosts; ``jax.devices()`` where None.
      ask: None asks the compiler on TPUs, and nobody elsewhere.

    Raises:
      ConfigError: nothing works, or the split is impossible on any platform.
    """
    devices = jax.devices() if devices is None else devices
    if config.placement == "shared":
        return Placement(Topology.shared(devices), None)
    if ask is None:
        ask = ask_compiler if devices[0].platform == "tpu" else accept
    batch = share(config)
    wanted = Topology.split(config.num_inference, devices, batch)
    why = ask(wanted)
    if why is None:
        return Placement(wanted, None)
    for topology in alternatives(wanted, devices):
        if batch % len(topology.learners) == 0 and ask(topology) is None:
            return Placement(topology, f"{topology.layout}, since {wanted.layout} fails: {why}")
    raise ConfigError(
        f"no placement works on these devices ({wanted.layout}: {why}): make "
        f"{' and '.join(sizes(config))} a multiple of {len(wanted.inference + wanted.learners)}, "
        "the devices of each host, so that all of them can learn."
    )


def alternatives(wanted: Topology, devices: Sequence[jax.Device]) -> list[Topology]:
    """Every other placement: splits, those nearest to ``wanted`` first, then ``shared``."""
    acting, learning = len(wanted.inference), len(wanted.learners)
    per_host = acting + learning
    if wanted.inference == wanted.learners:
        return []
    others = [count for count in range(1, per_host) if count != acting]
    others.sort(key=lambda count: (abs(count - acting), count))
    splits = [Topology.split(count, devices) for count in others]
    return [*splits, Topology.shared(devices)]


def ask_compiler(topology: Topology) -> str | None:
    """Compile the mean over the learner mesh, the one thing that crosses its devices.

    It takes about 0.2 s, 3 s on 2,048 devices; the whole update gets the same answer.
    """
    mesh = topology.mesh
    mean = jax.shard_map(
        lambda x: lax.pmean(x, LEARNER_AXIS),
        mesh=mesh,
        in_specs=PartitionSpec(LEARNER_AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    sharding = NamedSharding(mesh, PartitionSpec(LEARNER_AXIS))
    x = jax.ShapeDtypeStruct((mesh.size, 1024), jnp.float32, sharding=sharding)
    try:
        compile_(jax.jit(mean).lower(x))
    except Refused as refused:
        return str(refused)
    return None


def accept(topology: Topology) -> None:
    """Every mesh works."""
    return None


def surveyed(slice_name: str) -> str:
    """What ``ask_compiler`` said of a Cloud TPU slice, when the survey was made; one line."""
    survey = json.loads(files("sebulba").joinpath("placement.json").read_text())
    answers = survey["slices"].get(slice_name)
    source = f"asked on {survey['date']} with libtpu {survey['libtpu']}"
    if answers is None:
        return f"{slice_name} is not in the survey {source}"
    return f"{slice_name} accepts {', '.join(answers['accepted'])} ({source})"


def share(config: Config) -> int:
    """What the number of learner devices of a host must divide."""
    return math.gcd(*sizes(config).values())


def sizes(config: Config) -> dict[str, int]:
    """The fields that are divided over the learner devices of a host."""
    found = {"envs_per_actor": config.envs_per_actor}
    if isinstance(config, R2D2Config):
        found["sequences_per_update"] = config.sequences_per_update
    return found
