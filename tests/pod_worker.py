"""One process of a pod, for its tests: ``pod_worker.py MODE OUT HOSTS HOST PORT``.

``learn`` writes what must be the same on every host, and what is learned from given data; ``raise``
trains until the environments of host 1 raise.
"""

# ruff: noqa: E402 (JAX reads the environment when it is imported.)
from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

MODE, OUT, HOSTS, HOST, PORT = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6])
LEARNERS = 6
DEVICES = LEARNERS // HOSTS + 1
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import sebulba
from sebulba import algorithms, envs, presets
from sebulba.devices import cluster
from sebulba.learners import make_optimizer
from sebulba.learners.epochs import EpochConfig
from sebulba.learners.replay.shard import Sample
from sebulba.learners.replay.storage import Sequences
from sebulba.learners.sharding import TRAJECTORY_AXES, assemble
from sebulba.types import ActorOutput, Trajectory, Unroll

T, B = 20, 12
SHARE = B // LEARNERS
"""Trajectories of each learner device, however many hosts there are."""
Cut = tuple[int, slice]
"""The number of a learner device of this host, and what of the whole batch is its part."""


def main() -> None:
    cluster.initialize(f"127.0.0.1:{PORT}", HOSTS, HOST)
    topology = sebulba.Topology.split(1)
    if MODE == "raise":
        train_until_host_1_raises(topology)
    found: dict[str, dict[str, list[Any]]] = {}
    for preset in ("vtrace-catch", "r2d2-catch", "ppo-cartpole", "pqn-cartpole"):
        found[preset] = {"learned": learned(preset, topology)}
        if HOSTS > 1:
            found[preset]["digests"] = digests(preset, topology)
    (OUT / f"{HOSTS}-{HOST}.json").write_text(json.dumps(found))


def small(preset: str) -> Any:
    config = dataclasses.replace(
        presets.get(preset), envs_per_actor=B, batch_size=B, total_steps=3000, log_every=10
    )
    if isinstance(config, sebulba.R2D2Config):
        replay = dataclasses.replace(config.replay, capacity=500, min_size=50)
        config = dataclasses.replace(config, batch_size=LEARNERS, replay=replay)
    if isinstance(config, EpochConfig):
        config = dataclasses.replace(
            config,
            env="sebulba/Catch",
            unroll_length=T,
            # Each device chooses its own steps, and there are as many devices on one host.
            num_minibatches=4,
            # Adam would make one size of gradients that differ by a factor.
            optimizer=sebulba.OptimizerConfig(name="rmsprop", epsilon=1.0, learning_rate=0.3),
        )
    return config


def digests(preset: str, topology: sebulba.Topology) -> list[str]:
    """Of the parameters on each of this host's learner devices, after training."""
    config = small(preset)
    last: list[Any] = []

    algorithm = algorithms.of(config)

    def make_learner(*parts: Any) -> Any:
        learner: Any = algorithm.make_learner(*parts)
        update = learner.update

        def keeping(state: Any, progress: float) -> Any:
            state, logs = update(state, progress)
            last[:] = [learner.params(state)]
            return state, logs

        learner.update = keeping
        return learner

    with jax.thread_guard(True):
        watched = dataclasses.replace(algorithm, make_learner=make_learner)
        sebulba.train(config, algorithm=watched, topology=topology, progress=False)
    return [
        hashlib.sha256(
            b"".join(
                np.asarray(shard.data).tobytes()
                for leaf in jax.tree.leaves(last[0])
                for shard in leaf.addressable_shards
                if shard.device == device
            )
        ).hexdigest()
        for device in topology.learners
    ]


def learned(preset: str, topology: sebulba.Topology) -> list[float]:
    """From data that do not depend on the number of hosts: a gradient, or all of PPO's epochs."""
    config = small(preset)
    env: Any = envs.Catch(1, seed=0)
    if config.network.core == "lstm":
        env = envs.PreviousAction(env)
    algorithm = algorithms.of(config)
    agent = algorithm.make_agent(config, env.spec, "training")
    optimizer = make_optimizer(config.optimizer)
    learner: Any = algorithm.make_learner(config, agent, env.spec, optimizer, topology)
    state = learner.init(jax.random.key(1))
    first = HOST * len(topology.learners)
    cuts = [
        (number, slice((first + number) * SHARE, (first + number + 1) * SHARE))
        for number in range(len(topology.learners))
    ]
    if isinstance(config, EpochConfig):
        before = numbers(learner.params(state))
        learner.add([Unroll(0, [part(cut, topology) for cut in cuts])])
        after = numbers(learner.params(learner.update(state, 0.0)[0]))
        return [end - start for start, end in zip(before, after, strict=True)]
    if preset == "vtrace-catch":
        fixed: Any = ()
        batch: Any = (assemble([part(cut, topology) for cut in cuts], TRAJECTORY_AXES, topology),)
    else:
        fixed = state.target
        learner.replay.sizes = lambda: [100] * len(cuts)
        batch = (learner._batch([sample(cut, agent, topology) for cut in cuts]),)
    gradient = jax.jit(learner.synchronized.gradient)
    (found, *_), _ = gradient(learner.params(state), batch, fixed, np.float32(0))
    return numbers(found)


def numbers(tree: Any) -> list[float]:
    """All that this host's first learner device holds of a tree."""
    flat = jnp.concatenate([leaf.addressable_data(0).ravel() for leaf in jax.tree.leaves(tree)])
    return [float(number) for number in flat]


def part(cut: Cut, topology: sebulba.Topology) -> Trajectory:
    """A learner device's trajectories."""
    number, window = cut
    whole = trajectory()
    timestep, actor = jax.tree.map(lambda leaf: leaf[:, window], (whole.timestep, whole.actor))
    return jax.device_put(Trajectory(timestep, actor, {}), topology.learners[number])


def sample(cut: Cut, agent: Any, topology: sebulba.Topology) -> Sample:
    """A learner device's sequences; no two have the same probability."""
    number, window = cut
    timestep, actor, _ = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1)[window], trajectory())
    previous = np.concatenate([np.zeros_like(actor.action[:, :1]), actor.action], axis=1)
    observation = {"observation": timestep.observation, "last_action": previous}
    sequences = Sequences(
        timestep._replace(observation=observation), actor.action, agent.initial_state(SHARE)
    )
    indices = np.arange(B)[window]
    placed = jax.device_put(sequences, topology.learners[number])
    return Sample(placed, indices, indices, (1.0 + indices) / 100)


def trajectory() -> Trajectory:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    timestep = sebulba.Timestep(
        observation=normal(T + 1, B, 10, 5),
        reward=normal(T + 1, B),
        discount=(random.random((T + 1, B)) < 0.9).astype(np.float32),
        first=random.random((T + 1, B)) < 0.1,
    )
    action = random.integers(3, size=(T, B)).astype(np.int32)
    behavior = sebulba.agents.reference.Behavior(-np.abs(normal(T, B)), action)
    return Trajectory(timestep, ActorOutput(action, behavior), {})


def train_until_host_1_raises(topology: sebulba.Topology) -> None:
    class Raises(envs.Catch):
        steps = 0

        def step(self, action: np.ndarray) -> sebulba.Timestep:
            self.steps += 1
            if HOST == 1 and self.steps == 500:
                raise RuntimeError("this host's environment broke")
            return super().step(action)

    config = dataclasses.replace(small("vtrace-catch"), total_steps=10**9, out=OUT / "run")
    with jax.thread_guard(True):
        sebulba.train(config, topology=topology, make_env=Raises, progress=False)


main()
