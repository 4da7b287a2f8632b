"""Is all there that the benchmarks need? Says so in seconds, before hours are spent.

    python benchmarks/preflight.py

Imports the library and what it stands on, resets an Atari environment, and multiplies on JAX's
default device. A CPU is refused, unless --allow-cpu is given.
"""

from __future__ import annotations

import dataclasses
import sys

import envpool
import jax
import jax.numpy as jnp
import tyro

import sebulba
from sebulba import envs


@dataclasses.dataclass(frozen=True)
class Options:
    """Is all there that the benchmarks need?"""

    allow_cpu: bool = False
    """Do with a CPU."""


def main(options: Options) -> str | None:
    """What is wrong; None where nothing is."""
    print(f"sebulba {sebulba.__version__}, envpool {envpool.__version__}, jax {jax.__version__}")
    print(f"devices: {jax.devices()}", flush=True)
    if jax.default_backend() == "cpu" and not options.allow_cpu:
        return (
            "error: JAX's default backend is cpu: these benchmarks are for an accelerator. Install "
            "JAX for it, as with pip install 'jax[cuda13]', see that JAX_PLATFORMS does not hide "
            "it, or give --allow-cpu."
        )
    env = envs.make("Pong-v5", 1, seed=0)
    env.reset()
    env.close()
    jax.block_until_ready(jax.jit(jnp.matmul)(jnp.ones((8, 8)), jnp.ones((8, 8))))
    return None


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
