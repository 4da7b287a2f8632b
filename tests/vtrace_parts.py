"""What the tests of V-trace's learner share: a small config, its learner, and trajectories."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from unrolls import random_params, unroll_of

from sebulba import Behavior, NetworkConfig, OptimizerConfig, PolicyAgent, Topology, VTraceConfig
from sebulba.agents import distributions
from sebulba.learners import TrainState, VTraceLearner, make_optimizer
from sebulba.types import ActorOutput, ArraySpec, DiscreteSpec, EnvSpec, Timestep, Trajectory

T, B = 5, 8
SPEC = EnvSpec(ArraySpec((3,), np.dtype(np.float32)), DiscreteSpec(3), B)
CONFIG = VTraceConfig(
    envs_per_actor=B,
    batch_size=B,
    network=NetworkConfig(hidden_sizes=(16,), frame_stack=2),
    # Not Adam, which makes one size of gradients that differ by a factor.
    optimizer=OptimizerConfig(name="rmsprop", epsilon=1.0, learning_rate=0.1),
)
POLICY = distributions.make(SPEC.action)


@functools.cache
def topology(learners: int) -> Topology:
    """So many learner devices; one is shared with acting."""
    return Topology.split(1, jax.devices()[: learners + (learners > 1)])


def make_learner(learners: int = 1, **changes: Any) -> VTraceLearner:
    config = dataclasses.replace(CONFIG, **changes)
    agent = PolicyAgent(config.network, SPEC, POLICY)
    optimizer = make_optimizer(config.optimizer)
    return VTraceLearner(config, agent, SPEC, optimizer, topology(learners))


def random_trajectory(seed: int = 0, batch: int = B) -> Trajectory:
    """Off-policy, with several episodes in some columns and none ending in others."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    first = rng.random((T + 1, batch)) < np.linspace(0, 0.8, batch)
    discount = np.where(first, 1, rng.random((T + 1, batch)) < 0.8).astype(np.float32)
    timestep = Timestep(
        normal(T + 1, batch, 3), np.where(first, 0, 3 * normal(T + 1, batch)), discount, first
    )
    action = rng.integers(0, 3, (T, batch)).astype(np.int32)
    behavior = Behavior(-0.5 - rng.random((T, batch)).astype(np.float32), action)
    state = {"frames": normal(batch, 1, 3)}
    return Trajectory(timestep, ActorOutput(action, behavior), state)


@functools.cache
def params() -> Any:
    return random_params(PolicyAgent(CONFIG.network, SPEC, POLICY))


def new_state(learners: int = 1) -> TrainState:
    state: Any = TrainState(params(), make_optimizer(CONFIG.optimizer).init(params()))
    # Copies, since updates donate them.
    placed: TrainState = jax.device_put(
        jax.tree.map(np.array, state), topology(learners).replicated(), may_alias=False
    )
    return placed


def update(learner: VTraceLearner, state: Any, learners: int, *trajectories: Trajectory) -> Any:
    unrolls = [unroll_of(trajectory, topology(learners)) for trajectory in trajectories]
    assert learner.add(unrolls) == 1
    return learner.update(state, progress=0.0)


@functools.cache
def updated() -> Any:
    """State and logs after the update of one learner on the whole batch."""
    return jax.device_get(update(make_learner(), new_state(), 1, random_trajectory()))


@functools.cache
def whole_gradient() -> Any:
    """By jax.grad of the loss on the whole batch, with no device told apart."""
    value_and_grad = jax.jit(jax.value_and_grad(make_learner().loss, has_aux=True))
    (loss, logs), gradient = value_and_grad(params(), random_trajectory(), np.float32(0))
    return jax.device_get((gradient, {"loss": loss, **logs}))


def on_host(tree: Any) -> np.ndarray[Any, Any]:
    """All numbers of a tree in one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])
