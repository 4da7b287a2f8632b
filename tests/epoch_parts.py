"""What the tests of PPO and PQN share: small configs, learners and trajectories."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from unrolls import random_params, unroll_of

from sebulba import (
    NetworkConfig,
    OptimizerConfig,
    PPOConfig,
    PQNConfig,
    Topology,
    algorithms,
)
from sebulba.agents.networks import MOMENTS
from sebulba.learners import EpochLearner, make_optimizer
from sebulba.learners.epochs import EpochConfig, EpochState
from sebulba.learners.update import TrainState
from sebulba.types import (
    ArraySpec,
    DiscreteSpec,
    EnvSpec,
    Timestep,
    Trajectory,
)

T, B = 6, 8
FLOAT = np.dtype(np.float32)
SPEC = EnvSpec(ArraySpec((3,), FLOAT), DiscreteSpec(3), B)
PLAIN = NetworkConfig(hidden_sizes=(16,))
STACKED = NetworkConfig(hidden_sizes=(16,), frame_stack=3)
LSTM = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8)
# Not Adam, which makes one size of gradients that differ by a factor.
OPTIMIZER = OptimizerConfig(name="rmsprop", epsilon=1.0, learning_rate=0.1, max_gradient_norm=100)


def ppo(**changes: Any) -> PPOConfig:
    config = PPOConfig(
        envs_per_actor=B,
        batch_size=B,
        unroll_length=T,
        num_epochs=2,
        num_minibatches=2,
        network=PLAIN,
        optimizer=OPTIMIZER,
    )
    return dataclasses.replace(config, **changes)


def pqn(**changes: Any) -> PQNConfig:
    config = PQNConfig(
        envs_per_actor=B,
        batch_size=B,
        unroll_length=T,
        num_minibatches=2,
        network=PLAIN,
        optimizer=OPTIMIZER,
    )
    return dataclasses.replace(config, **changes)


BOTH = pytest.mark.parametrize("make", [ppo, pqn])
BOTH_IN_TURN = pytest.mark.parametrize("make", [pqn, pytest.param(ppo, marks=pytest.mark.slow)])
"""Where the code is that of both: one of them is enough after every edit."""


@functools.cache
def topology(learners: int) -> Topology:
    """So many learner devices; one is shared with acting."""
    return Topology.split(1, jax.devices()[: learners + (learners > 1)])


def agent_of(config: EpochConfig, spec: EnvSpec = SPEC) -> Any:
    return algorithms.of(config).make_agent(config, spec, "training")


def make_learner(config: EpochConfig, learners: int = 1, spec: EnvSpec = SPEC) -> Any:
    optimizer = make_optimizer(config.optimizer)
    make = algorithms.of(config).make_learner
    return make(config, agent_of(config, spec), spec, optimizer, topology(learners))


def new_state(config: EpochConfig, learners: int = 1, spec: EnvSpec = SPEC) -> EpochState:
    params = random_params(agent_of(config, spec))
    if MOMENTS in params:
        params[MOMENTS] = agent_of(config, spec).init(jax.random.key(0))[MOMENTS]
    train = TrainState(params, make_optimizer(config.optimizer).init(params))
    state: Any = jax.tree.map(np.array, EpochState(train, np.int32(3)))  # type: ignore[arg-type]
    # Copies, since updates donate them.
    placed: EpochState = jax.device_put(state, topology(learners).replicated(), may_alias=False)
    return placed


def trajectory_of(config: EpochConfig, seed: int = 0, spec: EnvSpec = SPEC) -> Trajectory:
    """Several episodes in some columns, none ending in others, and actions that were likely."""
    rng = np.random.default_rng(seed)
    first = rng.random((T + 1, B)) < np.linspace(0, 0.7, B)
    discount = np.where(first, 1, rng.random((T + 1, B)) < 0.8).astype(np.float32)
    observation = rng.normal(size=(T + 1, B, 3)).astype(np.float32)
    reward = np.where(first, 0, rng.normal(size=(T + 1, B))).astype(np.float32)
    timestep = Timestep(observation, reward, discount, first)
    agent = agent_of(config, spec)
    state = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), agent.initial_state(B)
    )
    params, act = random_params(agent, seed=5), jax.jit(agent.act)
    now, outputs = state, []
    for t in range(T):
        at = jax.tree.map(lambda leaf, t=t: leaf[t], timestep)
        output, now = act(params, jax.random.key(t), at, now)
        outputs.append(jax.device_get(output))
    return Trajectory(timestep, jax.tree.map(lambda *leaves: np.stack(leaves), *outputs), state)


@functools.cache
def trajectory(kind: str, network: NetworkConfig = PLAIN) -> Trajectory:
    """One for all tests of an algorithm and a network, in NumPy."""
    return trajectory_of((ppo if kind == "ppo" else pqn)(network=network))


def add(learner: EpochLearner, *trajectories: Trajectory, learners: int = 1) -> None:
    unrolls = [unroll_of(each, topology(learners)) for each in trajectories]
    assert learner.add(unrolls) == 1


def prepared(config: EpochConfig, batch: Trajectory, learners: int = 1) -> Any:
    learner = make_learner(config, learners)
    add(learner, batch, learners=learners)
    return learner.prepare_turn(new_state(config, learners).train.params, learner._turn)


def updated(
    config: EpochConfig, batch: Trajectory, learners: int = 1, progress: float = 0.0
) -> tuple[Any, Any]:
    """State and logs after one turn."""
    learner = make_learner(config, learners)
    add(learner, batch, learners=learners)
    state, logs = learner.update(new_state(config, learners), progress)
    return jax.device_get(state), {name: float(value) for name, value in logs.items()}


def on_host(tree: Any) -> np.ndarray[Any, Any]:
    """All numbers of a tree in one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


def name_of(make: Any) -> str:
    return "ppo" if make is ppo else "pqn"
