"""Cloud TPU slices: what a name such as v5e-16 means, and what its chips can do.

Peak rates are from Google's system architecture pages (cloud.google.com/tpu/docs/v2, v3, v4, v5e,
v5p, v6e, tpu7x), read in November 2026. The bandwidth of the inter-chip interconnect (ICI) is that
of all links of a chip, one way. For v5e, v5p, v6e and tpu7x it is half of the bidirectional number
on those pages; for v3 and v4 it is from Jouppi et al. (2023), "TPU v4", table 4 (4 links of 70
GB/s, 6 of 50 GB/s); for v2 from Jouppi et al. (2020), "A domain-specific supercomputer" (4 links of
496 Gbit/s). The CPUs of a host are those of the machine types ct3, ct3p, ct4p, ct5lp, ct5p and ct6e
(cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus), for tpu7x those of its own page; v2 is
not listed there and is assumed to have those of a v3 slice of one host.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from sebulba.validation import ConfigError

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Generation:
    """One generation of chips.

    Attributes:
      name: as in slice names, "v5e".
      flops: peak of a chip in bfloat16, operations/s. This holds for float32 matrices too, which
        JAX multiplies in one bfloat16 pass on TPUs by default.
      hbm_bytes, hbm_bandwidth: memory of a chip, bytes and bytes/s.
      ici_bandwidth: all links of a chip together, one way, bytes/s.
      cores_per_chip: TensorCores, which the number in a slice's name counts.
      devices_per_chip: JAX devices; on v4 and v5p, two cores are one device ("megacore").
      cpus: virtual CPUs of a host, by its number of chips.
      shapes: topology in chips, such as "4x4", by the number in the slice's name.
    """

    name: str
    flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    ici_bandwidth: float
    cores_per_chip: int
    devices_per_chip: int
    cpus: dict[int, int]
    shapes: dict[int, str]


def _shapes(text: str) -> dict[int, str]:
    pairs = (word.split(":") for word in text.split())
    return {int(count): shape for count, shape in pairs}


_SMALL = _shapes("1:1x1 4:2x2 8:2x4 16:4x4 32:4x8 64:8x8 128:8x16 256:16x16")
_CUBES = (
    "8:2x2x1 16:2x2x2 32:2x2x4 64:2x4x4 128:4x4x4 256:4x4x8 512:4x8x8 1024:8x8x8 2048:8x8x16 "
    "4096:8x16x16 8192:16x16x16"
)
GENERATIONS = {
    generation.name: generation
    for generation in (
        # In the order of the fields: name, FLOP/s, memory, its bandwidth, ICI bandwidth, cores and
        # JAX devices of a chip, CPUs of a host.
        Generation(
            *("v2", 46e12, 16 * _GIB, 700e9, 248e9, 2, 2, {4: 96}),
            _shapes("8:2x2 32:4x4 128:8x8 256:8x16 512:16x16"),
        ),
        Generation(
            *("v3", 123e12, 32 * _GIB, 900e9, 280e9, 2, 2, {4: 48}),
            _shapes("8:2x2 32:4x4 64:4x8 128:8x8 256:8x16 512:16x16 1024:16x32 2048:32x32"),
        ),
        Generation(
            *("v4", 275e12, 32 * _GIB, 1200e9, 300e9, 2, 1, {4: 240}),
            _shapes(_CUBES),
        ),
        Generation(
            *("v5e", 197e12, 16 * _GIB, 819e9, 200e9, 1, 1, {1: 24, 4: 112, 8: 224}),
            _SMALL,
        ),
        Generation(
            *("v5p", 459e12, 95 * _GIB, 2765e9, 600e9, 2, 1, {4: 208}),
            _shapes(f"{_CUBES} 12288:16x16x24"),
        ),
        Generation(
            *("v6e", 918e12, 32 * _GIB, 1638e9, 400e9, 1, 1, {1: 44, 4: 180, 8: 180}),
            _SMALL,
        ),
        Generation(
            *("tpu7x", 2307e12, 192 * _GIB, 7380e9, 600e9, 2, 2, {4: 224}),
            _shapes(_CUBES),
        ),
    )
}
_THREE_DIMENSIONS = ("v4", "v5p", "tpu7x")
_ALIASES = {"v5litepod": "v5e"}
# Values of jax.Device.device_kind, of which some generations have had two.
_KINDS = {
    **{f"TPU {name}": name for name in GENERATIONS},
    **{"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "TPU7x": "tpu7x"},
}
# A v3 slice of one host comes on another machine type (ct3) than hosts of larger slices (ct3p).
_SINGLE_HOST_V3_CPUS = 96


@dataclasses.dataclass(frozen=True)
class Slice:
    """A TPU slice: chips that are connected by one interconnect.

    Attributes:
      name: such as "v5e-16".
      generation: the kind of chip.
      shape: the topology in chips, such as "4x4".
      chips, hosts: how many the slice has.
      chips_per_host: chips of each host.
    """

    name: str
    generation: Generation
    shape: str
    chips: int
    hosts: int
    chips_per_host: int

    @property
    def devices_per_host(self) -> int:
        """JAX devices of each host."""
        return self.chips_per_host * self.generation.devices_per_chip

    @property
    def cpus(self) -> int:
        """Virtual CPUs of each host."""
        if self.generation.name == "v3" and self.hosts == 1:
            return _SINGLE_HOST_V3_CPUS
        return self.generation.cpus[self.chips_per_host]

    @property
    def flops(self) -> float:
        """Peak rate of a JAX device, operations/s."""
        return self.generation.flops / self.generation.devices_per_chip

    @property
    def hbm_bytes(self) -> float:
        """Memory of a JAX device, bytes."""
        return self.generation.hbm_bytes / self.generation.devices_per_chip

    @property
    def hbm_bandwidth(self) -> float:
        """Memory bandwidth of a JAX device, bytes/s."""
        return self.generation.hbm_bandwidth / self.generation.devices_per_chip

    @property
    def pcie_bandwidth(self) -> float:
        """A JAX device's share of its chip's link to the host, one way, bytes/s.

        Austin et al. (2025), "How to Scale Your Model", part 2: about 16 GB/s for each chip, and 32
        for v6e; of tpu7x it does not say, which is taken to be no slower than v6e.
        """
        of_chip = 32e9 if self.generation.name in ("v6e", "tpu7x") else 16e9
        return of_chip / self.generation.devices_per_chip

    @property
    def ici_bandwidth(self) -> float:
        """A JAX device's share of its chip's links, one way, bytes/s."""
        return self.generation.ici_bandwidth / self.generation.devices_per_chip


def names() -> list[str]:
    """Every slice that ``parse`` knows."""
    return [f"{kind.name}-{count}" for kind in GENERATIONS.values() for count in kind.shapes]


def parse(name: str) -> Slice:
    """The slice that Cloud TPU calls ``name``.

    The number in a name counts TensorCores, of which v2, v3, v4, v5p and tpu7x have two on each
    chip, and v5e (also called v5litepod) and v6e have one.

    Raises:
      ConfigError: there is no such slice; the message lists those that there are.
    """
    kind, _, count = name.partition("-")
    generation = GENERATIONS.get(_ALIASES.get(kind, kind))
    if generation is None or not count.isdigit() or int(count) not in generation.shapes:
        known = names() if generation is None else [n for n in names() if n.startswith(f"{kind}-")]
        raise ConfigError(
            f"slice {name!r} is unknown: it must be one of {', '.join(known or names())} "
            "(v5litepod-N is v5e-N). Set it with --slice."
        )
    shape = generation.shapes[int(count)]
    chips = _count(shape)
    # v5e and v6e slices of up to 8 chips come on one host; larger ones on hosts of 4.
    return of(generation.name, shape, chips if chips in generation.cpus else 4)


def of(generation: str, shape: str, chips_per_host: int) -> Slice:
    """The slice of that generation and topology, whether or not Cloud TPU has a name for it."""
    kind, chips = GENERATIONS[generation], _count(shape)
    name = f"{generation}-{chips * kind.cores_per_chip}"
    return Slice(name, kind, shape, chips, chips // chips_per_host, chips_per_host)


def identify(devices: Sequence[jax.Device]) -> Slice | None:
    """The slice that these devices of all hosts make up.

    None if they are not TPUs of a known kind, or are of several slices: ``unknown`` says which.
    """
    generation = _KINDS.get(devices[0].device_kind)
    if generation is None or _count_slices(devices) > 1:
        return None
    # Keyed by chip: on v2, v3 and tpu7x, the two devices of a chip have the same coordinates.
    places = {tuple(device.coords): device.process_index for device in devices}
    sides = [max(side) - min(side) + 1 for side in zip(*places, strict=True)]
    # ``coords`` always has three numbers; the other generations use only two of them.
    dimensions = 3 if generation in _THREE_DIMENSIONS else 2
    shape = "x".join(str(side) for side in sides[:dimensions])
    return of(generation, shape, len(places) // len(set(places.values())))


def unknown(devices: Sequence[jax.Device]) -> str:
    """What ``identify`` does not know, in a few words."""
    kind, count = devices[0].device_kind, _count_slices(devices)
    return f"{count} slices of {kind} are not known" if count > 1 else f"{kind} is not known"


def _count_slices(devices: Sequence[jax.Device]) -> int:
    # Slices that are joined by their hosts' network ("multislice"): coordinates are within a slice.
    return len({getattr(device, "slice_index", 0) for device in devices})


def _count(shape: str) -> int:
    return math.prod(int(side) for side in shape.split("x"))


def devices(tpu_slice: Slice) -> list[jax.Device]:
    """Descriptions of the slice's devices, which programs can be compiled for; needs no TPU.

    Raises:
      ConfigError: the TPU compiler is not installed.
    """
    # Without these, libtpu asks a metadata server, which only Google Cloud's machines have, and
    # waits for its answer.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", tpu_slice.name)
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # libtpu lets only one process load it, to protect the chips, which are not used here.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    options: dict[str, Any] = {"chips_per_host_bounds": _BOUNDS[tpu_slice.chips_per_host]}
    # Two cores as one JAX device, as real v4 and v5p chips are by default.
    if tpu_slice.generation.cores_per_chip > tpu_slice.generation.devices_per_chip:
        options["chip_config_name"] = "megacore"
    try:
        import libtpu  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"libtpu, the TPU compiler, is missing ({error}): install the extra tpu, "
            "pip install -e '.[tpu]' in a clone (Linux on x86-64; it needs no TPU)."
        ) from error
    description = topologies.get_topology_desc(
        platform="tpu",
        topology_name=f"{tpu_slice.generation.name}:{tpu_slice.shape}",
        **options,
    )
    return list(description.devices)


# How a host's chips are arranged in the slice.
_BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
