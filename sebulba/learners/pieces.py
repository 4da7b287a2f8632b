"""In how many pieces an update is dispatched."""

from __future__ import annotations

from sebulba.config import Config, R2D2Config
from sebulba.topology import Topology

_CACHED_FRAMES = 96
"""Of 84 x 84 x 4 pixels: what the convolutions make of more outgrows a cache of 32 MiB."""


def num_pieces(config: Config, topology: Topology) -> int:
    """``config.gradient_accumulation``, or where that is None what suits the devices.

    Accelerators take an update whole. On CPUs V-trace's convolutions are faster on pieces that stay
    in the cache: as few as hold at most 96 frames each, down to one environment of every actor.
    """
    if config.gradient_accumulation is not None:
        return config.gradient_accumulation
    network = config.network
    images = network.torso != "mlp" and network.core == "none"
    on_cpu = topology.mesh.devices.flat[0].platform == "cpu"
    if not (images and on_cpu) or isinstance(config, R2D2Config):
        return 1
    envs = config.envs_per_actor // len(topology.learners)
    lanes = config.batch_size // config.envs_per_actor
    frames = lanes * (config.unroll_length + 1)
    fitting = (n for n in range(1, envs) if envs % n == 0 and frames * envs // n <= _CACHED_FRAMES)
    return next(fitting, envs)
