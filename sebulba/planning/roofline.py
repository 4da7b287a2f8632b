"""Rates that a chip's peak numbers allow (Williams et al. 2009, "Roofline"): optimistic estimates.

Real programs do not reach the peaks, and the time of calls, transfers and Python is not counted.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from sebulba.devices.compiler import Program
from sebulba.devices.topology import Topology
from sebulba.devices.tpu_slices import Slice

Bound = Literal["acting", "learning", "environments"]
Part = Literal["compute", "memory", "all-reduce"]


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


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Roofline estimates of one layout.

    Attributes:
      act_seconds: time of one inference step of one actor.
      update_seconds: time of one update, with its all-reduce.
      update_bound: the part of an update that takes longest.
      acting, learning: frames/s of the whole slice that either side could sustain. Shared devices
        take turns at both, so the two are the same.
      environments: frames/s that the hosts' CPUs could simulate.
      frames: the smallest of the three.
      bound: which of the three is the smallest.
      cores_per_host: CPU cores of a host that would keep up with ``min(acting, learning)``.
    """

    act_seconds: float
    update_seconds: float
    update_bound: Part
    acting: float
    learning: float
    environments: float
    frames: float
    bound: Bound
    cores_per_host: float


def estimate(
    num_envs: int,
    steps_per_update: float,
    topology: Topology,
    machine: Machine,
    act: Program,
    update: Program,
) -> Estimate:
    """Rates on ``topology`` of programs that cost ``act`` and ``update``.

    Args:
      num_envs: environments that one call of ``act`` acts for.
      steps_per_update: agent steps of one host for each update.
      topology: which devices act and which learn.
      machine: what they can do.
      act: the cost of one inference step of one actor.
      update: the cost of one whole update.
    """
    chip = machine.slice
    # Computing and reading memory overlap, so the longer counts; the all-reduce needs the gradient,
    # so it comes on top.
    act_seconds = max(act.flops / chip.flops, act.bytes / chip.hbm_bandwidth)
    parts = _parts(update, chip, topology.mesh.size)
    update_seconds = max(parts["compute"], parts["memory"]) + parts["all-reduce"]
    # From here on: agent steps/s of one host.
    acting = len(topology.inference) * num_envs / act_seconds
    learning = steps_per_update / update_seconds
    slower: Bound = "acting" if acting < learning else "learning"
    # A shared device spends, for each step, the time of acting and then that of learning.
    if topology.is_shared:
        acting = learning = 1 / (1 / acting + 1 / learning)
    environments = chip.cpus * machine.steps_per_core
    devices = min(acting, learning)
    frames = machine.frame_skip * chip.hosts
    return Estimate(
        act_seconds=act_seconds,
        update_seconds=update_seconds,
        update_bound=max(parts, key=lambda part: parts[part]),
        acting=acting * frames,
        learning=learning * frames,
        environments=environments * frames,
        frames=min(devices, environments) * frames,
        bound="environments" if environments < devices else slower,
        cores_per_host=devices / machine.steps_per_core,
    )


def _parts(update: Program, chip: Slice, num_learners: int) -> dict[Part, float]:
    # A ring all-reduce is a reduce-scatter and an all-gather. In each, a device sends all but one
    # of its N parts of the array.
    sent = 2 * update.all_reduce_bytes * (num_learners - 1) / num_learners
    return {
        "compute": update.flops / chip.flops,
        "memory": update.bytes / chip.hbm_bandwidth,
        "all-reduce": sent / chip.ici_bandwidth,
    }
