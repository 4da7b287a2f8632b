"""Which devices act and which learn: the split that the config wants, or the nearest that works.

The TPU compiler refuses some meshes that leave out devices of a slice, so it is asked about the
exact mesh before anything is built on it. On other platforms any mesh works.
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
from sebulba.devices.tpu_slices import Slice, identify, unknown
from sebulba.validation import ConfigError

Ask = Callable[[Sequence[Topology]], list[str | None]]
"""Gives, for each topology, why its learner mesh does not work; None if it does."""


class Placement(NamedTuple):
    """The roles of the devices, and a line of explanation if the config wants others."""

    topology: Topology
    note: str | None


def choose(
    config: Config,
    fits: Callable[[int], bool],
    devices: Sequence[jax.Device] | None = None,
    ask: Ask | None = None,
) -> Placement:
    """The topology that ``config`` wants, else the nearest split that works, else all shared.

    Other topologies than the wanted one are only taken if their learners divide the batch.

    Args:
      config: says how many devices of each host act (``num_inference_devices``), and whether all
        devices do both (``placement``).
      fits: whether the batch divides over a number of learner devices of a host.
      devices: devices of all hosts; None takes ``jax.devices()``.
      ask: None takes ``known_or_asked`` on TPUs and ``accept`` on other platforms.

    Raises:
      ConfigError: no placement works, or the split is impossible with so many devices.
    """
    devices = jax.devices() if devices is None else devices
    if config.placement == "shared":
        return Placement(Topology.shared(devices), None)
    if ask is None:
        ask = known_or_asked(devices) if devices[0].platform == "tpu" else accept
    wanted = Topology.split(config.num_inference_devices, devices, fits)
    # First the wanted one alone: it usually works, and each further question takes time.
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
    """Every other placement: first the splits, nearest to ``wanted`` first, then ``shared``."""
    acting, learning = len(wanted.inference), len(wanted.learners)
    per_host = acting + learning
    # A split is only shared if each host has a single device: there is no other placement then.
    if wanted.is_shared:
        return []
    others = [count for count in range(1, per_host) if count != acting]
    others.sort(key=lambda count: (abs(count - acting), count))
    splits = [Topology.split(count, devices) for count in others]
    return [*splits, Topology.shared(devices)]


def tpu_compiler(tpu_slice: Slice) -> Ask:
    """Ask the TPU compiler in a child process, which takes about 10 seconds."""

    def ask(topologies: Sequence[Topology]) -> list[str | None]:
        # The child rebuilds each topology from this count: in a split, the first devices act.
        counts = [_acting_only(topology) for topology in topologies]
        answers = mesh_probe.ask(tpu_slice, counts)
        return [answers[count] for count in counts]

    return ask


def known_or_asked(devices: Sequence[jax.Device]) -> Ask:
    """The survey's answers if it has this slice and this version of the compiler; else ask.

    If the compiler cannot be asked, only meshes of one device or of all devices are accepted,
    which work on every slice.
    """
    tpu_slice = identify(devices)

    def ask(topologies: Sequence[Topology]) -> list[str | None]:
        try:
            if tpu_slice is None:
                raise mesh_probe.CannotAsk(unknown(devices))
            answers = survey()
            known = answers["slices"].get(tpu_slice.name, {})
            # One name can stand for several shapes, and their answers may differ.
            if known.get("shape") == tpu_slice.shape and answers["libtpu"] == _libtpu_version():
                return [known["refused"].get(topology.layout) for topology in topologies]
            return tpu_compiler(tpu_slice)(topologies)
        except mesh_probe.CannotAsk as error:
            why = f"the TPU compiler cannot be asked ({error})"
            sizes = (1, len(devices))
            return [None if topology.mesh.size in sizes else why for topology in topologies]

    return ask


def _acting_only(topology: Topology) -> int:
    """Devices of this host that only act: 0 if the devices are shared."""
    return sum(device not in topology.learners for device in topology.inference)


def _libtpu_version() -> str | None:
    try:
        return version("libtpu")
    except PackageNotFoundError:
        return None


def accept(topologies: Sequence[Topology]) -> list[str | None]:
    """Every mesh works, as on CPUs and GPUs."""
    return [None] * len(topologies)


def survey() -> dict[str, Any]:
    """The contents of placement.json: the compiler's answers for all slices, date and versions."""
    return json.loads(files("sebulba.devices").joinpath("placement.json").read_text())


def surveyed(slice_name: str) -> str:
    """The survey's answer for a slice, in one line."""
    answers = survey()
    source = f"asked on {answers['date']} with libtpu {answers['libtpu']}"
    known = answers["slices"].get(slice_name)
    if known is None:
        return f"{slice_name} is not in the survey {source}"
    return f"{slice_name} accepts {', '.join(known['accepted'])} ({source})"
