"""Learners: one file for each algorithm, on one synchronized update."""

from __future__ import annotations

from sebulba.learners.base import Learner, Logs
from sebulba.learners.epochs import EpochConfig, EpochLearner, fit_minibatches
from sebulba.learners.minibatches import Samples
from sebulba.learners.optimizer import make_optimizer
from sebulba.learners.ppo import PPOLearner
from sebulba.learners.pqn import PQNLearner
from sebulba.learners.r2d2 import R2D2Learner
from sebulba.learners.sharding import TRAJECTORY_AXES, assemble, concatenate
from sebulba.learners.trajectory import TrajectoryLearner
from sebulba.learners.update import LossOutput, SynchronizedUpdate, TrainState
from sebulba.learners.vtrace import VTraceLearner

__all__ = [
    "TRAJECTORY_AXES",
    "EpochConfig",
    "EpochLearner",
    "Learner",
    "Logs",
    "LossOutput",
    "PPOLearner",
    "PQNLearner",
    "R2D2Learner",
    "Samples",
    "SynchronizedUpdate",
    "TrainState",
    "TrajectoryLearner",
    "VTraceLearner",
    "assemble",
    "concatenate",
    "fit_minibatches",
    "make_optimizer",
]
