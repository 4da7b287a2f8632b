"""One of several hosts with eight environments: ``exact_host.py OUT HOSTS HOST PORT STEPS``.

Goes on with the run in OUT if there is one, and writes the parameters beside it.
"""

# ruff: noqa: E402 (JAX reads the environment when it is imported.)
from __future__ import annotations

import os
import sys
from pathlib import Path

OUT, HOSTS, HOST, PORT, STEPS = Path(sys.argv[1]), *map(int, sys.argv[2:6])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"


import jax
import numpy as np
from clockwork import Clockwork
from whole_runs import tiny

import sebulba
from sebulba import algorithms
from sebulba.devices import cluster

ENVS = 8 // HOSTS


def make_env(num_envs: int, seed: int) -> Clockwork:
    return Clockwork(num_envs, seed, offset=HOST * ENVS)


def main() -> None:
    if HOSTS > 1:
        cluster.initialize(f"127.0.0.1:{PORT}", HOSTS, HOST)
    config = tiny(
        out=OUT,
        resume=OUT.exists(),
        total_steps=STEPS,
        actors_per_device=1,
        envs_per_actor=ENVS,
        batch_size=ENVS,
        policy_lag="1",
        checkpoint=sebulba.CheckpointConfig(interval=5),
    )
    # The random numbers of actions follow from the number of the actor, of which hosts have their
    # own. The best action follows from the observation alone.
    agent = algorithms.VTRACE.make_agent(config, make_env(1, 0).spec, "greedily")
    result = sebulba.train(config, make_env=make_env, agent=agent, progress=False)
    if HOST == 0:
        leaves = jax.tree.leaves(result.params)
        np.savez(f"{OUT}.npz", *map(np.asarray, leaves), updates=np.array(result.updates))


main()
