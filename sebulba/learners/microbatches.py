"""In how many microbatches the gradient of convolutions is fastest."""

from __future__ import annotations

from sebulba.config import Config
from sebulba.devices.topology import Topology

_CACHED_FRAMES = 96
"""Of 84 x 84 x 4 pixels: what the convolutions make of more outgrows a cache of 32 MiB."""


def fitting_the_cache(config: Config, topology: Topology) -> int:
    """As few microbatches as hold at most 96 frames each, down to one environment of every actor.

    Convolutions on CPUs are faster on what stays in the cache. Accelerators take an update whole,
    and so do CPUs where there are no images, or an LSTM (not measured with one).
    """
    network = config.network
    images = network.torso != "mlp" and network.core == "none"
    on_cpu = topology.mesh.devices.flat[0].platform == "cpu"
    if not (images and on_cpu):
        return 1
    envs = config.envs_per_actor // len(topology.learners)
    unrolls = config.batch_size // config.envs_per_actor
    frames = unrolls * (config.unroll_length + 1)
    fitting = (n for n in range(1, envs) if envs % n == 0 and frames * envs // n <= _CACHED_FRAMES)
    return next(fitting, envs)
