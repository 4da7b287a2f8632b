"""Learners: one file for each algorithm, on one synchronised update."""

from __future__ import annotations

from sebulba.learners.base import (
    Learner,
    SynchronisedUpdate,
    TrainState,
    assemble,
    concatenate,
    make_optimiser,
)
from sebulba.learners.vtrace import VTraceLearner

__all__ = [
    "Learner",
    "SynchronisedUpdate",
    "TrainState",
    "VTraceLearner",
    "assemble",
    "concatenate",
    "make_optimiser",
]
