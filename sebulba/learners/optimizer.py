"""The optimizer that a config describes."""

from __future__ import annotations

import optax

from sebulba.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, num_updates: int) -> optax.GradientTransformation:
    """Clip by global norm, then RMSProp or Adam; the rate may fall linearly over the updates."""
    rate: optax.ScalarOrSchedule = config.learning_rate
    if config.decay_to_zero:
        rate = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    if config.name == "adam":
        rule = optax.adam(rate, eps=config.epsilon)
    else:
        rule = optax.rmsprop(rate, decay=config.rms_decay, eps=config.epsilon)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), rule)
