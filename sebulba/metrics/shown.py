"""Which metrics are drawn, over what, and what they are called; without NumPy, for the help."""

from __future__ import annotations

from typing import Literal

Axis = Literal["steps", "frames", "minutes"]

METRICS = (
    "episode_return_mean_100",
    "evaluation_return_mean",
    "steps_per_second",
    "policy_lag_mean",
    "loss",
)
"""What is drawn unless something else is asked for: return, speed, lag and loss. What no run has is
left out."""
TITLES = {
    "evaluation_return_mean": "return in evaluations",
    "episode_return_mean_100": "return, mean of the last 100 episodes",
    "steps_per_second": "steps per second",
    "policy_lag_mean": "policy lag, in turns",
}
"""Others are called by their names."""
