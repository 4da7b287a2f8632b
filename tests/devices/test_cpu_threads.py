"""Several CPU devices have threads enough."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Prints the number of threads that JAX computes with.
PROGRAM = """
import os, sys, jax
from sebulba.devices import cpu_threads

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
exec(sys.argv[1])
cpu_threads.provide()
jax.devices()
tasks = "/proc/self/task"
print(sum("XLAEigen" in open(f"{tasks}/{task}/comm").read() for task in os.listdir(tasks)))
"""


def environment(devices: int, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "NPROC"}
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**kept, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **more}


def threads(devices: int, first: str = "", **more: str) -> int:
    command = [sys.executable, "-c", PROGRAM, first]
    env = environment(devices, **more)
    told = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    return int(told.stdout)


@pytest.mark.slow
def test_each_of_several_devices_has_a_thread_more() -> None:
    assert threads(3) == 4
    assert threads(1, "jax.config.update('jax_num_cpu_devices', 2)") == 3


def test_what_the_environment_says_stays() -> None:
    assert threads(3, NPROC="6") == 6
