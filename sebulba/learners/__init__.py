"""Learners: one file for each algorithm, on one synchronised update."""

from __future__ import annotations

from sebulba.learners.base import (
    Batch,
    Delivery,
    Learner,
    LossOutput,
    SynchronisedUpdate,
    TrainState,
    TurnCount,
    assemble,
    concatenate,
    count_turn,
    make_optimiser,
)
from sebulba.learners.pieces import num_pieces
from sebulba.learners.r2d2 import R2D2Learner
from sebulba.learners.vtrace import VTraceLearner

__all__ = [
    "Batch",
    "Delivery",
    "Learner",
    "LossOutput",
    "R2D2Learner",
    "SynchronisedUpdate",
    "TrainState",
    "TurnCount",
    "VTraceLearner",
    "assemble",
    "concatenate",
    "count_turn",
    "make_optimiser",
    "num_pieces",
]
