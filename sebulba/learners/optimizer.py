"""The optimizer that a config describes."""

from __future__ import annotations

import optax

from sebulba.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, num_updates: int) -> optax.GradientTransformation:
    """Clipping by global norm, then RMSProp or Adam.

    Args:
      config: which rule, and its constants.
      num_updates: updates after which a learning rate that decays reaches 0.
    """
    rate: optax.ScalarOrSchedule = config.learning_rate
    if config.decay_to_zero:
        # Optax keeps the count of updates in the optimizer's state, which is part of a checkpoint:
        # a resumed run continues the decay.
        rate = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    if config.name == "adam":
        rule = optax.adam(rate, eps=config.epsilon)
    else:
        # Optax adds epsilon inside the square root, as TensorFlow's RMSProp does in IMPALA.
        rule = optax.rmsprop(rate, decay=config.rms_decay, eps=config.epsilon)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), rule)
