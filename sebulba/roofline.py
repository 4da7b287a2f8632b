"""Rates that a chip's peaks allow (Williams et al. 2009, "Roofline"): estimates, and optimistic.

A program reaches neither peak, and calls, transfers and Python are not counted.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from sebulba.compiler import Program
from sebulba.config import Config, R2D2Config
from sebulba.topology import Topology
from sebulba.tpu import Slice

Bound = Literal["acting", "learning", "environments"]
Part = Literal["compute", "memory", "all-reduce", "hosts' network"]
HOST_BANDWIDTH = 12.5e9
"""Of a host's data-centre network, one way, bytes/s: a v5e pod's 6.4 Tbit/s
(cloud.google.com/tpu/docs/v5e) over its 64 hosts of four chips."""


class Machine(NamedTuple):
    """What the rates depend on, apart from the programs.

    Attributes:
      slice: the chips and hosts.
      frame_skip: frames for each agent step.
      steps_per_core: agent steps/s of the environment on one CPU core.
    """

    slice: Slice
    frame_skip: int
    steps_per_core: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Rooflines of one layout.

    Attributes:
      act_seconds: one inference step of one actor.
      update_seconds: one update, with what its averaging sends.
      update_bound: what the update waits for most.
      acting, learning: frames/s of the whole slice that either side could sustain. Where devices
        are shared, they do both in turn, so the two are the same.
      environments: frames/s that the hosts' CPUs could simulate.
      frames: the least of the three.
      bound: which of the three is the least.
      cores_per_host: CPU cores that the devices, at ``min(acting, learning)``, would keep busy.
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
    config: Config,
    topology: Topology,
    machine: Machine,
    act: Program,
    update: Program,
    gradient_bytes: int,
) -> Estimate:
    """Rates of ``config`` on ``topology``, whose programs cost ``act`` and ``update``."""
    chip = machine.slice
    act_seconds = max(act.flops / chip.flops, act.bytes / chip.hbm_bandwidth)
    parts = _parts(update, chip, topology, gradient_bytes)
    sending = parts["all-reduce"] + parts["hosts' network"]
    update_seconds = max(parts["compute"], parts["memory"]) + sending
    acting = len(topology.inference) * config.envs_per_actor / act_seconds
    learning = steps_per_update(config) / update_seconds
    slower: Bound = "acting" if acting < learning else "learning"
    if topology.inference == topology.learners:
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


def steps_per_update(config: Config) -> float:
    """Steps of one host's environments for each update."""
    if isinstance(config, R2D2Config):
        # Every unroll of an environment completes one sequence.
        return config.sequences_per_update / config.replay.ratio * config.unroll_length
    return config.batch_size * config.unroll_length


def _parts(
    update: Program, chip: Slice, topology: Topology, gradient_bytes: int
) -> dict[Part, float]:
    def ring(sent: int, size: int) -> float:
        """Every byte is sent twice, but for those that stay where they are."""
        return 2 * sent * (size - 1) / size

    hosts = topology.num_hosts if topology.averaging == "hosts" else 1
    return {
        "compute": update.flops / chip.flops,
        "memory": update.bytes / chip.hbm_bandwidth,
        "all-reduce": ring(update.all_reduce_bytes, topology.mesh.size) / chip.ici_bandwidth,
        "hosts' network": ring(gradient_bytes, hosts) / HOST_BANDWIDTH,
    }
