"""Podracer-style "Sebulba" reinforcement learning on JAX.

>>> import dataclasses, sebulba
>>> config = dataclasses.replace(sebulba.presets.get("vtrace-catch"), total_steps=50_000)
>>> result = sebulba.train(config)
>>> result.metrics[-1]["episode_return_mean"]
"""

from __future__ import annotations

from sebulba import distributions, envs, inference, learners, losses, networks, presets
from sebulba.agent import Behaviour, PolicyAgent, PolicyValue
from sebulba.config import (
    CheckpointConfig,
    Config,
    ConfigError,
    NetworkConfig,
    OptimiserConfig,
    R2D2Config,
    ReplayCheckpointConfig,
    ReplayConfig,
    VTraceConfig,
)
from sebulba.evaluate import Evaluation, evaluate, evaluate_run
from sebulba.metrics import read as read_metrics
from sebulba.runner import TrainResult, train
from sebulba.topology import Topology
from sebulba.types import (
    ActorOutput,
    Agent,
    ArraySpec,
    BoxSpec,
    DiscreteSpec,
    Env,
    EnvSpec,
    Timestep,
    Trajectory,
)
from sebulba.version import __version__

__all__ = [
    "ActorOutput",
    "Agent",
    "ArraySpec",
    "Behaviour",
    "BoxSpec",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DiscreteSpec",
    "Env",
    "EnvSpec",
    "Evaluation",
    "NetworkConfig",
    "OptimiserConfig",
    "PolicyAgent",
    "PolicyValue",
    "R2D2Config",
    "ReplayCheckpointConfig",
    "ReplayConfig",
    "Timestep",
    "Topology",
    "TrainResult",
    "Trajectory",
    "VTraceConfig",
    "__version__",
    "distributions",
    "envs",
    "evaluate",
    "evaluate_run",
    "inference",
    "learners",
    "losses",
    "networks",
    "presets",
    "read_metrics",
    "train",
]
