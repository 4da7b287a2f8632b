"""How fast a preset would run on a TPU slice, estimated without one.

The inference step and the update are compiled for that slice with the real TPU compiler, which
needs no TPU. ``roofline`` turns the compiler's counts into rates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax

from sebulba import algorithms
from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.devices import placement, tpu_slices
from sebulba.devices.compiler import Program, Refused, inspect
from sebulba.devices.topology import Topology
from sebulba.planning.lowering import Lowered, lower
from sebulba.planning.roofline import Estimate, Machine, Work, estimate
from sebulba.runners import environments
from sebulba.runners.training import changed_options
from sebulba.types import EnvSpec
from sebulba.validation import ConfigError, require

STEPS_PER_CORE = (458.0, 958.0)
"""Agent steps/s of EnvPool's Atari on one CPU of a TPU VM: stepped synchronously, as here, and at
most (asynchronously, on each NUMA node by itself).

From its authors' table: 175,938 and 367,799 frames/s on 96 CPUs, at 4 frames a step
(github.com/sail-sg/envpool, README, "Benchmark Results"; Weng et al. 2022). Several actors, each of
which steps its environments synchronously, are between the two."""
_CLOSE = 0.95
"""Layouts within 5% of the best count as equal, since these are estimates."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One layout.

    Attributes:
      layout: roles of each host's devices, as in ``Topology.layout``.
      changes: options to change for this layout, so that its learners divide the batch.
      refused: why the compiler refuses it, or None.
      act, update: what one inference step and one whole update cost a device.
      hbm: peak memory of the fullest device in bytes, including all its actors and the replay.
      estimate: rates with the slowest environments that are assumed; None if the layout is refused.
      at_best: rates with the fastest.
    """

    layout: str
    changes: str
    refused: str | None = None
    act: Program | None = None
    update: Program | None = None
    hbm: int = 0
    estimate: Estimate | None = None
    at_best: Estimate | None = None

    @property
    def is_shared(self) -> bool:
        """Whether every device both acts and learns."""
        # "a0,1-l0,1": the same numbers after the letters.
        acting, learning = self.layout.split("-")
        return acting[1:] == learning[1:]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every sensible layout of a slice, and the recommended one.

    Attributes:
      preset, env: what is planned.
      slice, shape: name of the slice, and its topology in chips.
      hosts, devices_per_host, cpus_per_host: its size.
      hbm_bytes: memory of one device.
      steps_per_core: agent steps/s that are assumed of the environments on one CPU: least, most.
      versions: of the compiler and of jax.
      rows: the layouts.
      chosen: the layout that training chooses by itself.
      chosen_note: why that is not the layout that the config asks for; None if it is.
      recommended: the best layout; None if the compiler refuses all.
      why: the reason for the recommendation, in one line.
    """

    preset: str
    env: str
    slice: str
    shape: str
    hosts: int
    devices_per_host: int
    cpus_per_host: int
    hbm_bytes: float
    steps_per_core: tuple[float, float]
    versions: dict[str, str]
    rows: list[Row]
    chosen: str
    chosen_note: str | None
    recommended: str | None
    why: str


def make(config: Config, slice_name: str, steps_per_core: float | None = None) -> Plan:
    """Compile every sensible layout and estimate its rates; takes minutes for a deep network.

    Args:
      config: the preset, with any changes.
      slice_name: as Cloud TPU calls the slice, such as "v5e-16".
      steps_per_core: agent steps/s of the environments on one CPU; None takes ``STEPS_PER_CORE``.

    Raises:
      ConfigError: the slice is unknown, the TPU compiler is not installed, or the config or
        ``steps_per_core`` is wrong.
    """
    assumed = _assumed(steps_per_core)
    tpu_slice = tpu_slices.parse(slice_name)
    algorithm = algorithms.of(config)
    config.validate()
    require(
        config,
        "remote_lanes",
        not config.remote_lanes,
        "must be 0 for a plan, which knows the CPUs of the slice's hosts alone",
    )
    algorithm.unrolls_per_turn(config)  # Raises if a batch is not made of whole unrolls.
    try:
        devices = tpu_slices.devices(tpu_slice)
    except ConfigError as error:
        raise ConfigError(f"{error} Meanwhile: {placement.surveyed(tpu_slice.name)}.") from error
    spec = environments.probe(environments.default_make_env(config))
    machines = tuple(Machine(tpu_slice, spec.frame_skip, steps) for steps in assumed)
    ask = placement.tpu_compiler(tpu_slice)

    def fits(num_learners: int) -> bool:
        return algorithm.fits(config, num_learners)

    chosen = placement.choose(config, fits, devices, ask)
    # Training may fall back on a layout that is not sensible but the nearest that works: show it.
    topologies = sensible(config, fits, devices)
    if chosen.topology.layout not in [topology.layout for topology in topologies]:
        topologies.append(chosen.topology)
    acts: dict[int, Program] = {}
    # A mean over the mesh is quick to compile, and whole updates are not: these are only compiled
    # for meshes that the compiler accepts.
    rows = [
        Row(topology.layout, changed_options(config, _fit(algorithm, config, topology)), why)
        if why is not None
        else _row(algorithm, config, spec, topology, machines, acts)
        for topology, why in zip(topologies, ask(topologies), strict=True)
    ]
    recommended, why = recommend(rows, chosen.topology.layout)
    return Plan(
        preset=config.preset,
        env=config.env,
        slice=tpu_slice.name,
        shape=tpu_slice.shape,
        hosts=tpu_slice.hosts,
        devices_per_host=tpu_slice.devices_per_host,
        cpus_per_host=tpu_slice.cpus,
        hbm_bytes=tpu_slice.hbm_bytes,
        steps_per_core=assumed,
        versions={name: version(name) for name in ("libtpu", "jax")},
        rows=rows,
        chosen=chosen.topology.layout,
        chosen_note=chosen.note,
        recommended=recommended,
        why=why,
    )


def _assumed(steps_per_core: float | None) -> tuple[float, float]:
    """The range of the environments' steps/s on one CPU."""
    if steps_per_core is None:
        return STEPS_PER_CORE
    if not 0 < steps_per_core < math.inf:
        raise ConfigError(
            f"steps_per_core is {steps_per_core}, but must be above 0 and finite: give the "
            "environment's steps/s on one CPU, or leave it out"
        )
    return steps_per_core, steps_per_core


def sensible(
    config: Config, fits: Callable[[int], bool], devices: Sequence[jax.Device]
) -> list[Topology]:
    """The layouts worth comparing, sorted by their number of learners.

    These are the default split, every split whose learners divide the batch and are at least a
    quarter of the devices (an update costs about three times the actors' work), and all devices
    shared. If ``config`` sets ``num_inference_devices``, only that split and shared devices; if its
    ``placement`` is shared, only that.

    Args:
      config: says what is wanted.
      fits: whether the batch divides over a number of learner devices of a host.
      devices: devices of all hosts.
    """
    if config.placement == "shared":
        return [Topology.shared(devices)]
    wanted = Topology.split(config.num_inference_devices, devices)
    found = [wanted]
    for topology in placement.alternatives(wanted, devices):
        learners, acting = len(topology.learners), len(topology.inference)
        sensible = fits(learners) and 4 * learners >= learners + acting
        if topology.is_shared or (config.num_inference_devices is None and sensible):
            found.append(topology)
    return sorted(found, key=lambda topology: (len(topology.learners), len(topology.inference)))


def _fit(algorithm: Algorithm[Any], config: Config, topology: Topology) -> Config:
    """``config`` with its sizes rounded up to what the learners of ``topology`` divide."""
    return algorithm.fit(config, len(topology.learners))


def recommend(rows: Sequence[Row], chosen: str) -> tuple[str | None, str]:
    """The layout with the most frames/s and the reason; None if all are refused.

    Slow environments are assumed. Among layouts that are about equal, one without changes to the
    config comes first, then the one that training chooses by itself (``chosen``).
    """
    possible = [(row, row.estimate) for row in rows if row.estimate is not None]
    if not possible:
        return None, "every layout is refused"
    most = max(rates.frames for _, rates in possible)
    # False sorts before True, so the least key is: no changes, then the chosen layout, then speed.
    row, rates = min(
        (pair for pair in possible if pair[1].frames >= _CLOSE * most),
        key=lambda pair: (pair[0].changes != "", pair[0].layout != chosen, -pair[1].frames),
    )
    why = (
        f"{_rate(row, rates)} (acting {rates.acting:,.0f}, learning {rates.learning:,.0f}, "
        f"environments {rates.environments:,.0f})"
    )
    for other, its in sorted(possible, key=lambda pair: pair[1].frames, reverse=True):
        if other is not row:
            needs = f", needs {other.changes}" if other.changes else ""
            why += f"; next is {other.layout}: {_rate(other, its)}{needs}"
            break
    return row.layout, why


def _rate(row: Row, rates: Estimate) -> str:
    """Frames/s, and what they depend on."""
    text = f"{rates.frames:,.0f} frames/s, bound by {rates.bound}"
    best = row.at_best
    if best is None or best.frames == rates.frames:
        return text
    now = "" if best.bound == rates.bound else f", then by {best.bound}"
    return f"{text}, to {best.frames:,.0f} with faster environments{now}"


def _row(
    algorithm: Algorithm[Any],
    original: Config,
    spec: EnvSpec,
    topology: Topology,
    machines: tuple[Machine, ...],
    acts: dict[int, Program],
) -> Row:
    """Compile and estimate one layout; ``acts`` caches inference steps by ``envs_per_actor``."""
    config = _fit(algorithm, original, topology)
    changes = changed_options(original, config)
    lowered = lower(algorithm, config, spec, topology)
    try:
        # An actor's step does not depend on which devices learn: layouts with equally many
        # environments share it, and are compiled faster.
        if config.envs_per_actor not in acts:
            acts[config.envs_per_actor] = inspect(lowered.act)
        first, *rest = (inspect(program).times(count) for program, count in lowered.update)
        besides = tuple((inspect(program), count) for program, count in lowered.upkeep.programs)
    except Refused as refused:
        return Row(topology.layout, changes, str(refused))
    act, update = acts[config.envs_per_actor], first
    for piece in rest:
        update = update.then(piece)
    hbm = _peak_memory(config, topology, lowered, (act, update, *(piece for piece, _ in besides)))
    room = machines[0].slice.hbm_bytes
    if hbm > room:
        why = f"it needs {hbm / 2**30:.2f} of the {room / 2**30:.0f} GiB of a device"
        return Row(topology.layout, changes, why, act, update, hbm)
    work = Work(
        config.envs_per_actor,
        config.actors_per_device,
        algorithm.steps_per_update(config),
        act,
        update,
        lowered.upkeep.gathered,
        lowered.upkeep.stored,
        besides,
    )
    slow, fast = (estimate(work, topology, machine) for machine in machines)
    return Row(topology.layout, changes, None, act, update, hbm, slow, fast)


def _peak_memory(
    config: Config, topology: Topology, lowered: Lowered, programs: tuple[Program, ...]
) -> int:
    """Bytes of the fullest device, where ``programs`` are the step, the update, and what else."""
    act, update, *besides = programs
    # The step's own count has one actor in it. A device that only acts never holds a replay.
    acting = act.hbm + (config.actors_per_device - 1) * lowered.carry_bytes
    # What the replay's programs need besides the replay is there while the update runs.
    learning = update.hbm + max((program.hbm for program in besides), default=0)
    return acting + learning if topology.is_shared else max(acting, learning)
