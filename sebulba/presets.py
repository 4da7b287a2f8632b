"""Configurations that work, by name."""

from __future__ import annotations

import dataclasses
import difflib

from sebulba.config import (
    CheckpointConfig,
    Config,
    ConfigError,
    NetworkConfig,
    OptimiserConfig,
    VTraceConfig,
)

_CATCH = VTraceConfig(
    preset="vtrace-catch",
    env="sebulba/Catch",
    total_steps=300_000,
    envs_per_actor=32,
    batch_size=32,
    optimiser=OptimiserConfig(name="adam", learning_rate=1e-3),
    checkpoint=CheckpointConfig(every=200),
)

_CARTPOLE = VTraceConfig(
    preset="vtrace-cartpole",
    env="CartPole-v1",
    total_steps=500_000,
    envs_per_actor=16,
    batch_size=16,
    unroll_length=16,
    reward_scale=0.05,
    optimiser=OptimiserConfig(name="adam", learning_rate=2e-3, max_gradient_norm=0.5),
    log_every=100,
    checkpoint=CheckpointConfig(every=200),
)

_ATARI = VTraceConfig(
    preset="vtrace-atari",
    env="Breakout-v5",
    total_steps=50_000_000,
    envs_per_actor=32,
    batch_size=32,
    unroll_length=20,
    discount=0.99,
    entropy_cost=0.01,
    baseline_cost=0.5,
    reward_clip=1.0,
    network=NetworkConfig(torso="deep", hidden_sizes=(256,), frame_stack=4),
    # Table G.1 of the paper: RMSProp, 6e-4 falling to 0, decay 0.99, epsilon 0.01, clipping at
    # 40, for losses summed over T x B = 20 x 32.
    optimiser=OptimiserConfig(
        name="rmsprop",
        learning_rate=6e-4,
        rms_decay=0.99,
        epsilon=0.01 / 640**2,
        max_gradient_norm=40 / 640,
    ),
)

PRESETS: dict[str, tuple[Config, str]] = {
    "vtrace-catch": (_CATCH, "Catch on a 10 x 5 board, in NumPy: solved in seconds."),
    "vtrace-cartpole": (_CARTPOLE, "CartPole-v1: solved in under a minute on two CPU cores."),
    "vtrace-atari": (
        _ATARI,
        "Atari with IMPALA's deep residual network (15 convolutions) and hyper-parameters.",
    ),
    "vtrace-atari-shallow": (
        dataclasses.replace(
            _ATARI,
            preset="vtrace-atari-shallow",
            network=NetworkConfig(torso="shallow", hidden_sizes=(512,), frame_stack=4),
        ),
        "Atari with the three-convolution network: what a laptop can train.",
    ),
}
"""Every preset and what it is for."""


def get(name: str) -> Config:
    """The preset called ``name``.

    Raises:
      ConfigError: there is none; the message says which are close.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see: sebulba presets."
        raise ConfigError(f"preset {name!r} is unknown: it must be one of {list(PRESETS)}; {hint}")
    return PRESETS[name][0]
