"""The mathematics of the losses: pure functions of time-major arrays, with no network or optimizer.

All functions align arrays in the same way. Arrays with one element for each action a_t are
``[T, B]``: log-probabilities, TD errors, and also what the action led to, that is the reward,
discount and ``first`` of timestep t+1 (``timestep.reward[1:]``, ...). Arrays with one element for
each timestep are ``[T+1, B]``: values and Q values. The last value bootstraps.
"""

from __future__ import annotations

from sebulba.losses.lambda_returns import generalized_advantages, lambda_returns
from sebulba.losses.n_step import NStepQOutput, n_step_double_q, n_step_returns
from sebulba.losses.policy_gradient import (
    baseline_loss,
    entropy_loss,
    mean_loss,
    policy_gradient_loss,
)
from sebulba.losses.ppo import ClippedPolicyOutput, clipped_policy_loss, clipped_value_loss
from sebulba.losses.priorities import (
    importance_weights,
    normalize_importance_weights,
    sequence_priorities,
)
from sebulba.losses.rewards import clip_rewards
from sebulba.losses.value_rescaling import inverse_rescale, rescale
from sebulba.losses.vtrace import VTraceOutput, vtrace

__all__ = [
    "ClippedPolicyOutput",
    "NStepQOutput",
    "VTraceOutput",
    "baseline_loss",
    "clip_rewards",
    "clipped_policy_loss",
    "clipped_value_loss",
    "entropy_loss",
    "generalized_advantages",
    "importance_weights",
    "inverse_rescale",
    "lambda_returns",
    "mean_loss",
    "n_step_double_q",
    "n_step_returns",
    "normalize_importance_weights",
    "policy_gradient_loss",
    "rescale",
    "sequence_priorities",
    "vtrace",
]
