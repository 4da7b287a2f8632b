"""The maths of the losses: pure functions of time-major arrays, with no network and no optimizer.

One alignment everywhere: arrays of the action at time t (log-probabilities, TD errors, ...) and of
what it led to (reward, discount and ``first`` of timestep t+1, that is ``timestep.reward[1:]``) are
``[T, B]``; values, one for each timestep, are ``[T+1, B]``, and the last one bootstraps.
"""

from __future__ import annotations

from sebulba.losses.n_step import NStepQOutput, n_step_double_q, n_step_returns
from sebulba.losses.policy_gradient import (
    baseline_loss,
    entropy_loss,
    mean_loss,
    policy_gradient_loss,
)
from sebulba.losses.priorities import (
    importance_weights,
    normalize_importance_weights,
    sequence_priorities,
)
from sebulba.losses.rewards import clip_rewards
from sebulba.losses.value_rescaling import inverse_rescale, rescale
from sebulba.losses.vtrace import VTraceOutput, vtrace

__all__ = [
    "NStepQOutput",
    "VTraceOutput",
    "baseline_loss",
    "clip_rewards",
    "entropy_loss",
    "importance_weights",
    "inverse_rescale",
    "mean_loss",
    "n_step_double_q",
    "n_step_returns",
    "normalize_importance_weights",
    "policy_gradient_loss",
    "rescale",
    "sequence_priorities",
    "vtrace",
]
