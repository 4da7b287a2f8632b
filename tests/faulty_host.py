"""One of two hosts that train, with a fault: ``faulty_host.py FAULT OUT HOST PORT [SECONDS]``.

``none``; ``apart``, where each has a working directory of its own; on host 1: ``raises`` in an
environment, ``sleeps`` in one for ever, gets a ``wrong`` reward, ``refuses`` the config, ``exits``
before it trains; ``lead-raises``, as ``raises`` on host 0. ``late`` and ``lead-late``: host 1 or
host 0 goes on for SECONDS after training. Any other word is none, and training has no end.
"""

# ruff: noqa: E402 (JAX reads the environment when it is imported.)
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FAULT, OUT, HOST, PORT = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
SECONDS = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import dataclasses

import numpy as np

import sebulba
from sebulba import envs, presets
from sebulba.cli.main import reporting_errors
from sebulba.devices import cluster

STEPS = int(os.environ.get("STEPS", "3000"))
GRACE_SECONDS = float(os.environ.get("GRACE_SECONDS", "4"))


class FaultyCatch(envs.Catch):
    """Catch, in which something happens on host 1 at step 300."""

    steps = 0

    def step(self, action: np.ndarray) -> sebulba.Timestep:
        self.steps += 1
        if HOST == 0 and self.steps == 300 and FAULT == "lead-raises":
            raise RuntimeError("this host's environment broke")
        if HOST == 1 and self.steps == 300:
            if FAULT == "raises":
                raise RuntimeError("this host's environment broke")
            if FAULT == "sleeps":
                print("sleeps", flush=True)
                time.sleep(600)
        timestep = super().step(action)
        if FAULT == "wrong" and HOST == 1 and self.steps == 300:
            return timestep._replace(reward=timestep.reward * np.nan)
        return timestep


def make_env(num_envs: int, seed: int) -> envs.Catch:
    if FAULT == "refuses" and HOST == 1:
        raise sebulba.ConfigError("this host has no such environment: install it")
    return FaultyCatch(num_envs, seed)


def main() -> None:
    if FAULT == "apart":
        place = Path(f"host-{HOST}")
        place.mkdir(exist_ok=True)
        os.chdir(place)
    address = os.environ.get("COORDINATOR", "127.0.0.1")
    heartbeat = int(os.environ.get("HEARTBEAT_SECONDS", "100"))
    cluster.initialize(f"{address}:{PORT}", 2, HOST, heartbeat_seconds=heartbeat)
    if FAULT == "exits" and HOST == 1:
        sys.exit(3)
    config = dataclasses.replace(
        presets.get("vtrace-catch"),
        envs_per_actor=12,
        batch_size=12,
        log_every=10,
        checkpoint=sebulba.CheckpointConfig(interval=20),
        # Those that break or wait for signals have no end of their own.
        total_steps=STEPS if FAULT in ("none", "late", "lead-late") else 10**9,
        stall_seconds=float(os.environ.get("STALL_SECONDS", "300")),
        grace_seconds=GRACE_SECONDS,
        out=OUT,
        resume="RESUME" in os.environ,
    )
    sebulba.train(config, make_env=make_env, progress=False)
    print("trained", flush=True)
    is_late = HOST == 1 if FAULT == "late" else HOST == 0 and FAULT == "lead-late"
    if is_late:
        time.sleep(SECONDS)
    print("done", flush=True)


with reporting_errors():
    main()
