"""The optimizer that a config describes."""

from __future__ import annotations

from typing import Any

import jax
import optax

from sebulba.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, then RMSProp, Adam or RAdam.

    Its ``update`` takes the extra argument ``progress``: the share of ``total_steps`` that is done,
    from 0 to 1. A learning rate that decays is 0 at 1.
    """
    if config.name == "adam":
        rule = optax.scale_by_adam(eps=config.epsilon)
    elif config.name == "radam":
        rule = optax.scale_by_radam(eps=config.epsilon)
    else:
        # Epsilon is added inside the square root, as TensorFlow's RMSProp does in IMPALA.
        rule = optax.scale_by_rms(decay=config.rms_decay, eps=config.epsilon)
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm), rule, _scale_by_rate(config)
    )


def _scale_by_rate(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Minus the learning rate times the gradient.

    By progress in steps, not by Optax's count of updates: how many updates ``total_steps`` will
    take depends on auto-resets and, after a resume, on hosts and batch sizes of before. There is no
    state either, so that a resumed run may change whether the rate decays.
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, progress: Any = 0.0, **_: Any
    ) -> tuple[Any, Any]:
        rate = config.learning_rate * (1 - progress if config.decay_to_zero else 1)
        return jax.tree.map(lambda leaf: -rate * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
