"""In how many programs an update is fastest, which depends on its convolutions."""

from __future__ import annotations

from sebulba.agents.reference import is_reference
from sebulba.config import Config, whole_unrolls
from sebulba.devices.topology import Topology
from sebulba.types import Agent

_CACHED_FRAMES = 96
"""Frames of 84 x 84 x 4 pixels whose activations in the convolutions fit a cache of 32 MiB."""


def fitting_the_cache(config: Config, topology: Topology) -> int:
    """The fewest microbatches of at most 96 frames each, of the trajectories of one turn.

    A microbatch keeps at least one environment of each unroll, even if that is more than 96 frames.
    """
    # A learner device gets an equal part of B of each unroll, and a microbatch an equal part of
    # that: both divisions are along B, so the frames of one environment stay together.
    envs = config.envs_per_actor // len(topology.learners)
    unrolls = whole_unrolls(config)
    return fewest(config, topology, envs, unrolls * (config.unroll_length + 1))


def fewest(config: Config, topology: Topology, count: int, frames: int) -> int:
    """In how many equal parts ``count`` sequences of so many ``frames`` fit the cache.

    On CPUs, convolutions are faster if their activations stay in the cache. The result is 1 on
    accelerators, without images, and with an LSTM, for which this was not measured.
    """
    network = config.network
    images = network.torso != "mlp" and network.core == "none"
    if not (images and _on_cpu(topology)):
        return 1
    fitting = (
        n for n in range(1, count) if count % n == 0 and frames * count // n <= _CACHED_FRAMES
    )
    return next(fitting, count)


def fast_in_loops(agent: Agent, topology: Topology) -> bool:
    """Whether updates in a loop of one program are as fast as in programs of their own.

    On CPUs, XLA computes the gradients of convolutions in a loop 10 to 30 times as slowly, but for
    those of ``ops.conv2d``. The reference agents have no others, and of an agent of the user's own
    it is not known.
    """
    return is_reference(agent) or not _on_cpu(topology)


def _on_cpu(topology: Topology) -> bool:
    return topology.mesh.devices.flat[0].platform == "cpu"
