"""Podracer-style "Sebulba" reinforcement learning on JAX.

>>> import dataclasses, sebulba
>>> config = dataclasses.replace(sebulba.presets.get("vtrace-catch"), total_steps=50_000)
>>> result = sebulba.train(config)
>>> result.metrics[-1]["episode_return_mean"]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sebulba.version import __version__

if TYPE_CHECKING:
    from sebulba import algorithms, envs, inference, learners, losses, presets
    from sebulba.agents import distributions, networks, torsos
    from sebulba.agents.reference import Behavior, PolicyAgent, PolicyValue, QAgent
    from sebulba.algorithms import Algorithm
    from sebulba.config import (
        CheckpointConfig,
        Config,
        EvaluationConfig,
        NetworkConfig,
        OptimizerConfig,
    )
    from sebulba.devices.cluster import initialize
    from sebulba.devices.topology import Topology
    from sebulba.learners.base import Learner
    from sebulba.learners.ppo import PPOConfig
    from sebulba.learners.pqn import PQNConfig
    from sebulba.learners.r2d2 import R2D2Config, ReplayCheckpointConfig
    from sebulba.learners.replay.host import ReplayConfig
    from sebulba.learners.trajectory import TrajectoryLearner
    from sebulba.learners.vtrace import VTraceConfig
    from sebulba.metrics.sinks import CsvSink, LivePlot, Sink
    from sebulba.metrics.writer import read as read_metrics
    from sebulba.remote.settings import Listen
    from sebulba.rundir.run import Run, aggregate, find_runs, load_run, plot
    from sebulba.runners.checking import check_agent
    from sebulba.runners.evaluation import Evaluation, evaluate, evaluate_run
    from sebulba.runners.exporting import export
    from sebulba.runners.trained import TrainedAgent, load
    from sebulba.runners.training import Interrupted, TrainResult, train
    from sebulba.runners.video import record
    from sebulba.runtime.watchdog import HostError, StallError
    from sebulba.types import (
        ActorOutput,
        Agent,
        ArraySpec,
        BoxSpec,
        DiscreteSpec,
        Env,
        EnvsLost,
        EnvSpec,
        Histogram,
        MultiDiscreteSpec,
        Timestep,
        Trajectory,
        Unroll,
    )
    from sebulba.validation import ConfigError

__all__ = [
    "ActorOutput",
    "Agent",
    "Algorithm",
    "ArraySpec",
    "Behavior",
    "BoxSpec",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "CsvSink",
    "DiscreteSpec",
    "Env",
    "EnvSpec",
    "EnvsLost",
    "Evaluation",
    "EvaluationConfig",
    "Histogram",
    "HostError",
    "Interrupted",
    "Learner",
    "Listen",
    "LivePlot",
    "MultiDiscreteSpec",
    "NetworkConfig",
    "OptimizerConfig",
    "PPOConfig",
    "PQNConfig",
    "PolicyAgent",
    "PolicyValue",
    "QAgent",
    "R2D2Config",
    "ReplayCheckpointConfig",
    "ReplayConfig",
    "Run",
    "Sink",
    "StallError",
    "Timestep",
    "Topology",
    "TrainResult",
    "TrainedAgent",
    "Trajectory",
    "TrajectoryLearner",
    "Unroll",
    "VTraceConfig",
    "__version__",
    "aggregate",
    "algorithms",
    "check_agent",
    "distributions",
    "envs",
    "evaluate",
    "evaluate_run",
    "export",
    "find_runs",
    "inference",
    "initialize",
    "learners",
    "load",
    "load_run",
    "losses",
    "networks",
    "plot",
    "presets",
    "read_metrics",
    "record",
    "torsos",
    "train",
]

# What each name is imported from when it is first used: `import sebulba` alone stays quick.
_MODULES = {
    "ActorOutput": "sebulba.types",
    "Agent": "sebulba.types",
    "Algorithm": "sebulba.algorithms",
    "ArraySpec": "sebulba.types",
    "Behavior": "sebulba.agents.reference",
    "BoxSpec": "sebulba.types",
    "CheckpointConfig": "sebulba.config",
    "Config": "sebulba.config",
    "ConfigError": "sebulba.validation",
    "CsvSink": "sebulba.metrics.sinks",
    "DiscreteSpec": "sebulba.types",
    "Env": "sebulba.types",
    "EnvSpec": "sebulba.types",
    "EnvsLost": "sebulba.types",
    "Evaluation": "sebulba.runners.evaluation",
    "EvaluationConfig": "sebulba.config",
    "Histogram": "sebulba.types",
    "HostError": "sebulba.runtime.watchdog",
    "Interrupted": "sebulba.runners.training",
    "Learner": "sebulba.learners.base",
    "Listen": "sebulba.remote.settings",
    "LivePlot": "sebulba.metrics.sinks",
    "MultiDiscreteSpec": "sebulba.types",
    "NetworkConfig": "sebulba.config",
    "OptimizerConfig": "sebulba.config",
    "PPOConfig": "sebulba.learners.ppo",
    "PQNConfig": "sebulba.learners.pqn",
    "PolicyAgent": "sebulba.agents.reference",
    "PolicyValue": "sebulba.agents.reference",
    "QAgent": "sebulba.agents.reference",
    "R2D2Config": "sebulba.learners.r2d2",
    "ReplayCheckpointConfig": "sebulba.learners.r2d2",
    "ReplayConfig": "sebulba.learners.replay.host",
    "Run": "sebulba.rundir.run",
    "Sink": "sebulba.metrics.sinks",
    "StallError": "sebulba.runtime.watchdog",
    "Timestep": "sebulba.types",
    "Topology": "sebulba.devices.topology",
    "TrainResult": "sebulba.runners.training",
    "TrainedAgent": "sebulba.runners.trained",
    "Trajectory": "sebulba.types",
    "TrajectoryLearner": "sebulba.learners.trajectory",
    "Unroll": "sebulba.types",
    "VTraceConfig": "sebulba.learners.vtrace",
    "aggregate": "sebulba.rundir.run",
    "algorithms": "sebulba.algorithms",
    "check_agent": "sebulba.runners.checking",
    "distributions": "sebulba.agents.distributions",
    "envs": "sebulba.envs",
    "evaluate": "sebulba.runners.evaluation",
    "evaluate_run": "sebulba.runners.evaluation",
    "export": "sebulba.runners.exporting",
    "find_runs": "sebulba.rundir.run",
    "inference": "sebulba.inference",
    "initialize": "sebulba.devices.cluster",
    "learners": "sebulba.learners",
    "load": "sebulba.runners.trained",
    "load_run": "sebulba.rundir.run",
    "losses": "sebulba.losses",
    "networks": "sebulba.agents.networks",
    "plot": "sebulba.rundir.run",
    "presets": "sebulba.presets",
    "read_metrics": "sebulba.metrics.writer",
    "record": "sebulba.runners.video",
    "torsos": "sebulba.agents.torsos",
    "train": "sebulba.runners.training",
}
_SUBMODULES = {name for name, module in _MODULES.items() if module.endswith(f".{name}")}
_RENAMED = {"read_metrics": "read"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    value = module if name in _SUBMODULES else getattr(module, _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
