"""What the tests of R2D2 share: real unrolls, learners compiled once, and a slow loop."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
from unrolls import random_params, unroll_of

from sebulba import (
    NetworkConfig,
    OptimizerConfig,
    QAgent,
    R2D2Config,
    ReplayConfig,
    Topology,
    algorithms,
    envs,
)
from sebulba.inference import ActorProgram
from sebulba.learners import R2D2Learner, TrainState, make_optimizer
from sebulba.learners.r2d2 import R2D2State, ReplayBatch
from sebulba.learners.replay.storage import Sequences
from sebulba.types import Timestep, Trajectory

B, UNROLLS = 8, 6
CONFIG = R2D2Config(
    env="sebulba/Catch",
    envs_per_actor=B,
    actors_per_device=1,
    unroll_length=6,
    sequence_length=12,
    burn_in=5,
    batch_size=8,
    n_step=3,
    discount=0.9,
    target_update_period=3,
    network=NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=8, frame_stack=2),
    # Not Adam, which makes one size of gradients that differ by a factor.
    optimizer=OptimizerConfig(name="rmsprop", epsilon=1.0, learning_rate=0.1, decay_to_zero=False),
    replay=ReplayConfig(capacity=B * UNROLLS, min_size=B),
)


def make_env(num_envs: int = B) -> envs.PreviousAction:
    return envs.PreviousAction(envs.Catch(num_envs, seed=0))


SPEC = make_env().spec
AGENT = QAgent(CONFIG.network, SPEC)
OPTIMIZER = make_optimizer(CONFIG.optimizer)
COMPILED: dict[tuple[int, int], R2D2Learner] = {}


@functools.cache
def topology(learners: int) -> Topology:
    return Topology.split(1, jax.devices()[: learners + (learners > 1)])


def make_learner(
    learners: int = 1, microbatches: int = 1, samples_per_insert: float = 1.0
) -> R2D2Learner:
    """With an empty replay; the programs are compiled once."""
    replay = dataclasses.replace(CONFIG.replay, samples_per_insert=samples_per_insert)
    config = dataclasses.replace(CONFIG, num_microbatches=microbatches, replay=replay)
    learner = R2D2Learner(config, AGENT, SPEC, OPTIMIZER, topology(learners))
    learner.prepare()
    compiled = COMPILED.setdefault((learners, microbatches), learner)
    for name in ("synchronized", "_errors", "_update_target"):
        setattr(learner, name, getattr(compiled, name))
    return learner


@functools.cache
def params(seed: int = 1) -> Any:
    return random_params(AGENT, seed)


@functools.cache
def trajectories() -> list[Trajectory]:
    """Consecutive ones of the real program, exploring, in NumPy."""
    config = dataclasses.replace(CONFIG, epsilon_alpha=1.0)
    exploration = algorithms.R2D2.make_exploration(config, B)
    assert exploration is not None
    learners = topology(1).learners
    program = ActorProgram(AGENT, SPEC, CONFIG.unroll_length, learners, exploration.explore)
    env = make_env()
    carry = program.start(params(), jax.random.key(2), np.int32(0))
    timestep, trajectories = env.reset(), []
    for _ in range(UNROLLS):
        for _ in range(CONFIG.unroll_length):
            action, carry = program.step(params(), carry, timestep, exploration.epsilons(0.0))
            timestep = env.step(np.asarray(action))
        (trajectory,), carry = program.finish(carry, timestep)
        trajectories.append(jax.device_get(trajectory))
    return trajectories


def fill(learner: R2D2Learner, learners: int = 1, count: int = UNROLLS) -> int:
    """Insert ``count`` unrolls; returns the updates that are due."""
    new = (unroll_of(trajectory, topology(learners)) for trajectory in trajectories()[:count])
    return sum(learner.add([unroll]) for unroll in new)


def new_state(learners: int = 1, target: int = 5) -> R2D2State:
    """With a target network unlike the online one, by default."""
    train = TrainState(params(), OPTIMIZER.init(params()))
    state = R2D2State(train, params(seed=target), np.int32(0))  # type: ignore[arg-type]
    # Copies, since updates donate them.
    placed: R2D2State = jax.device_put(
        jax.tree.map(np.array, state), topology(learners).replicated(), may_alias=False
    )
    return placed


def loss(online: Any, target: Any, batch: ReplayBatch) -> jax.Array:
    """What an update makes smaller."""
    return make_learner()._loss(online, target, jax.numpy.float32(0), (batch,))[0]


@jax.jit
def q_values(parameters: Any, sequences: Sequences) -> jax.Array:
    """``[N, S+1, A]``."""
    timestep = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), sequences.timestep)
    return AGENT.unroll(parameters, timestep, sequences.initial_state)[0].swapaxes(0, 1)


# A slow loop, in float64 and by the textbook.


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    root = math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3))
    return math.copysign(((root - 1) / 2e-3) ** 2 - 1, x)


def slow_errors(online: Any, target: Any, actions: Any, timestep: Timestep) -> list[float | None]:
    """TD errors of one sequence; None where a step is no part of the problem.

    Q values ``[L+1, A]`` of timesteps 0 to L, actions ``[L]``.
    """
    errors: list[float | None] = []
    length = len(actions)
    for t in range(length):
        if timestep.first[t + 1]:
            errors.append(None)
            continue
        value, discount, k = 0.0, 1.0, t
        while k < min(t + CONFIG.n_step, length) and not timestep.first[k + 1]:
            value += discount * float(timestep.reward[k + 1])
            discount *= CONFIG.discount * float(timestep.discount[k + 1])
            k += 1
        value += discount * h_inverse(float(target[k, np.argmax(online[k])]))
        errors.append(h(value) - float(online[t, actions[t]]))
    return errors


def slow_priority(errors: list[float | None]) -> float:
    absolute = [abs(error) for error in errors if error is not None]
    return 0.9 * max(absolute) + 0.1 * sum(absolute) / len(absolute)


def row_of(tree: Any, row: int, start: int = 0) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[row, start:], tree)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


@functools.cache
def global_batch() -> ReplayBatch:
    """Eight sequences with different weights, in NumPy."""
    learner = make_learner()
    fill(learner)
    (sample,) = learner.replay.sample()
    weights = np.linspace(0.1, 1, 8).astype(np.float32)
    batch: ReplayBatch = jax.device_get(ReplayBatch(sample.sequences, weights))
    return batch
