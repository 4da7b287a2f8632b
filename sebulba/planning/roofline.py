"""Rates that a chip's peak numbers allow (Williams et al. 2009, "Roofline"): optimistic estimates.

Real programs do not reach the peaks. The time of calls and of Python is not counted, and of
transfers only those of a replay in host memory.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from sebulba.devices.compiler import Program
from sebulba.devices.topology import Topology
from sebulba.devices.tpu_slices import Slice

Bound = Literal["acting", "learning", "environments"]
Part = Literal["compute", "memory", "all-reduce", "replay"]

GATHERING = 1.9e9
"""Bytes/s at which the learner's thread gathers sequences: 39 MB of Atari in 21 ms, measured on one
core of an AMD EPYC. (On busy cores it took 49 ms: benchmarks/results/replay.json.)"""
STORING = 6e9
"""Bytes/s at which it stores unrolls: 6.2 MB in 1.0 ms (benchmarks/results/replay.json)."""
SHARING = 0.8
"""Share of the rate of devices that both act and learn which is left as each waits for the other.
It is assumed, not measured."""


class Machine(NamedTuple):
    """What the rates depend on, apart from the programs.

    Attributes:
      slice: the chips and hosts.
      frame_skip: frames of the game for each agent step.
      steps_per_core: agent steps/s of the environments on one CPU core.
    """

    slice: Slice
    frame_skip: int
    steps_per_core: float


class Work(NamedTuple):
    """What a run computes again and again.

    Attributes:
      num_envs: environments that one call of ``act`` acts for.
      actors_per_device: actors that take turns on one inference device.
      steps_per_update: agent steps of one host for each update.
      act: the cost of one inference step of one actor.
      update: the cost of one whole update.
      gathered, stored: as in ``sebulba.learners.base.Upkeep``.
      besides: what else a learner device runs, and how often for each update.
    """

    num_envs: int
    actors_per_device: int
    steps_per_update: float
    act: Program
    update: Program
    gathered: float = 0.0
    stored: float = 0.0
    besides: tuple[tuple[Program, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Roofline estimates of one layout.

    Attributes:
      act_seconds: time of one inference step of one actor.
      update_seconds: time of one update, with its all-reduce.
      replay_seconds: time of the replay's work for one update. On the devices it adds to the
        update; in host memory the learner's thread does it while the devices update.
      update_bound: what takes longest of an update and its replay.
      acting: frames/s of the whole slice that the actors reach. Each waits for its environments
        after each inference step, and for its device where others use it.
      learning: frames/s that the learners could sustain.
      environments: frames/s that the hosts' CPUs could simulate, if they never waited.
      frames: the smaller of ``acting`` and ``learning``.
      bound: what limits ``frames``; environments, if actors mostly wait for them.
      cores_per_host: CPU cores of a host that simulate as fast as its devices act and learn.
    """

    act_seconds: float
    update_seconds: float
    replay_seconds: float
    update_bound: Part
    acting: float
    learning: float
    environments: float
    frames: float
    bound: Bound
    cores_per_host: float


def estimate(work: Work, topology: Topology, machine: Machine) -> Estimate:
    """Rates of ``work`` on ``topology``, whose devices and CPUs are those of ``machine``."""
    chip = machine.slice
    act_seconds = _seconds(work.act, chip)
    parts = _parts(work.update, chip, topology.mesh.size)
    update_seconds = max(parts["compute"], parts["memory"]) + parts["all-reduce"]
    on_device = sum(count * _seconds(program, chip) for program, count in work.besides)
    on_host = _host_seconds(work, chip, len(topology.learners))
    parts["replay"] = on_device + on_host
    # From here on: agent steps/s of one host.
    devices = len(topology.inference) * work.num_envs / act_seconds
    undisturbed = work.actors_per_device * devices
    learning = work.steps_per_update / (update_seconds + on_device)
    # A shared device spends, for each step, the time of acting and then that of learning.
    if topology.is_shared:
        devices = learning = SHARING / (1 / devices + 1 / learning)
    if on_host:
        learning = min(learning, work.steps_per_update / on_host)
    environments = chip.cpus * machine.steps_per_core
    # An actor acts, then waits for its environments, which have its share of the CPUs.
    in_turns = 1 / (1 / undisturbed + 1 / environments)
    acting, waits = min(devices, in_turns), in_turns < devices and environments < undisturbed
    frames = machine.frame_skip * chip.hosts
    return Estimate(
        act_seconds=act_seconds,
        update_seconds=update_seconds,
        replay_seconds=on_device + on_host,
        update_bound=max(parts, key=lambda part: parts[part]),
        acting=acting * frames,
        learning=learning * frames,
        environments=environments * frames,
        frames=min(acting, learning) * frames,
        bound="learning" if learning <= acting else "environments" if waits else "acting",
        cores_per_host=min(devices, learning) / machine.steps_per_core,
    )


def _host_seconds(work: Work, chip: Slice, num_learners: int) -> float:
    """Time of the learner's thread for the replay in host memory, for each update."""
    sent = (work.gathered + work.stored) / (chip.pcie_bandwidth * num_learners)
    return work.gathered / GATHERING + work.stored / STORING + sent


def _seconds(program: Program, chip: Slice) -> float:
    # Computing and reading memory overlap, so the longer counts.
    return max(program.flops / chip.flops, program.bytes / chip.hbm_bandwidth)


def _parts(update: Program, chip: Slice, num_learners: int) -> dict[Part, float]:
    # The all-reduce needs the gradient, so it comes on top. As a ring it is a reduce-scatter and an
    # all-gather: in each, a device sends all but one of its N parts of the array.
    sent = 2 * update.all_reduce_bytes * (num_learners - 1) / num_learners
    return {
        "compute": update.flops / chip.flops,
        "memory": update.bytes / chip.hbm_bandwidth,
        "all-reduce": sent / chip.ici_bandwidth,
    }
