"""The threads with which JAX computes on CPUs."""

from __future__ import annotations

import os
import re

import jax

from sebulba.envs.base import cpu_cores

_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def provide() -> None:
    """Let JAX have a thread for each core and one more for each of several CPU devices.

    A device that waits for the others in a collective operation occupies a thread. JAX starts as
    many threads as there are cores or devices, whichever is more. So with two devices on two cores,
    both may wait for threads that are taken, and after 40 s XLA ends the process.

    Call it before JAX is used; later it changes nothing. An NPROC in the environment stays, which
    is where JAX reads the number of threads.
    """
    forced = _DEVICES.findall(os.environ.get("XLA_FLAGS", ""))
    devices = max(jax.config.values["jax_num_cpu_devices"], int(forced[-1]) if forced else 1)
    if devices > 1:
        os.environ.setdefault("NPROC", str(cpu_cores() + devices))
