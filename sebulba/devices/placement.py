"""Which devices act and which learn: the wanted split, or the nearest one that works.

The TPU compiler refuses some meshes that leave out devices of a slice, so it is asked about the
very mesh before anything is built on it. On other platforms any mesh works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, NamedTuple

import jax

from sebulba.config import Config
from sebulba.devices import mesh_probe
from sebulba.devices.topology import Topology
from sebulba.devices.tpu_slices import Slice, identify
from sebulba.validation import ConfigError

Ask = Callable[[Sequence[Topology]], list[str | None]]
"""Why the learner mesh of each topology does not work; None where it does."""


class Placement(NamedTuple):
    """The roles of the devices, and a line where they are not those asked for."""

    topology: Topology
    note: str | None


def choose(
    config: Config,
    fits: Callable[[int], bool],
    devices: Sequence[jax.Device] | None = None,
    ask: Ask | None = None,
) -> Placement:
    """The topology that ``config`` wants, the nearest one that works, or ``Topology.shared``.

    Only placements whose learners divide the batch are taken in its place.

    Args:
      config: wants ``num_inference_devices`` that act on each host.
      fits: whether the batch divides over that many learner devices of a host.
      devices: devices of all hosts; ``jax.devices()`` where None.
      ask: None takes ``known_or_asked`` on TPUs, and ``accept`` elsewhere.

    Raises:
      ConfigError: nothing works, or the split is impossible on any platform.
    """
    devices = jax.devices() if devices is None else devices
    if config.placement == "shared":
        return Placement(Topology.shared(devices), None)
    if ask is None:
        ask = known_or_asked(devices) if devices[0].platform == "tpu" else accept
    wanted = Topology.split(config.num_inference_devices, devices, fits)
    (why,) = ask([wanted])
    if why is None:
        return Placement(wanted, None)
    others = [t for t in alternatives(wanted, devices) if fits(len(t.learners))]
    for topology, refused in zip(others, ask(others), strict=True):
        if refused is None:
            return Placement(topology, f"{topology.layout}, since {wanted.layout} fails: {why}")
    raise ConfigError(
        f"no placement works on these devices ({wanted.layout}: {why}): make envs_per_actor and "
        f"batch_size multiples of {len(wanted.inference + wanted.learners)}, the devices of each "
        "host, so that all of them can learn."
    )


def alternatives(wanted: Topology, devices: Sequence[jax.Device]) -> list[Topology]:
    """Every other placement: splits, those nearest to ``wanted`` first, then ``shared``."""
    acting, learning = len(wanted.inference), len(wanted.learners)
    per_host = acting + learning
    if wanted.is_shared:
        return []
    others = [count for count in range(1, per_host) if count != acting]
    others.sort(key=lambda count: (abs(count - acting), count))
    splits = [Topology.split(count, devices) for count in others]
    return [*splits, Topology.shared(devices)]


def tpu_compiler(tpu_slice: Slice) -> Ask:
    """Ask the TPU compiler, in a process of its own: 10 seconds or so."""

    def ask(topologies: Sequence[Topology]) -> list[str | None]:
        counts = [_acting_only(topology) for topology in topologies]
        answers = mesh_probe.ask(tpu_slice, counts)
        return [answers[count] for count in counts]

    return ask


def known_or_asked(devices: Sequence[jax.Device]) -> Ask:
    """The survey's answers, where this slice is in it and the compiler is the same; else ask.

    Where nothing answers, a mesh of all devices of the slice or of a single one is accepted: no
    slice refuses those.
    """
    tpu_slice = identify(devices)

    def ask(topologies: Sequence[Topology]) -> list[str | None]:
        try:
            if tpu_slice is None:
                raise mesh_probe.CannotAsk(f"{devices[0].device_kind} is not known")
            answers = survey()
            known = answers["slices"].get(tpu_slice.name, {})
            if known.get("shape") == tpu_slice.shape and answers["libtpu"] == _libtpu_version():
                return [known["refused"].get(topology.layout) for topology in topologies]
            return tpu_compiler(tpu_slice)(topologies)
        except mesh_probe.CannotAsk as error:
            why = f"the TPU compiler cannot be asked ({error})"
            sizes = (1, len(devices))
            return [None if topology.mesh.size in sizes else why for topology in topologies]

    return ask


def _acting_only(topology: Topology) -> int:
    return sum(device not in topology.learners for device in topology.inference)


def _libtpu_version() -> str | None:
    try:
        return version("libtpu")
    except PackageNotFoundError:
        return None


def accept(topologies: Sequence[Topology]) -> list[str | None]:
    """Every mesh works."""
    return [None] * len(topologies)


def survey() -> dict[str, Any]:
    """What the compiler said of every slice, with the date and versions: see placement.json."""
    answers: dict[str, Any] = json.loads(
        files("sebulba.devices").joinpath("placement.json").read_text()
    )
    return answers


def surveyed(slice_name: str) -> str:
    """The survey's answer for a slice, in a line."""
    answers = survey()
    source = f"asked on {answers['date']} with libtpu {answers['libtpu']}"
    known = answers["slices"].get(slice_name)
    if known is None:
        return f"{slice_name} is not in the survey {source}"
    return f"{slice_name} accepts {', '.join(known['accepted'])} ({source})"
