"""PQN's configurations that work."""

from __future__ import annotations

import dataclasses

from sebulba.config import CheckpointConfig, Config, NetworkConfig, OptimizerConfig
from sebulba.learners.pqn import PQNConfig

CARTPOLE = PQNConfig(
    preset="pqn-cartpole",
    env="CartPole-v1",
    total_steps=500_000,
    envs_per_actor=32,
    batch_size=32,
    unroll_length=64,
    num_epochs=4,
    num_minibatches=16,
    policy_lag="1",
    lambda_=0.95,
    reward_scale=0.1,
    log_every=10,
    epsilon_end=0.05,
    exploration_fraction=0.2,
    network=NetworkConfig(hidden_sizes=(256, 256), layer_norm=True),
    optimizer=OptimizerConfig(name="radam", learning_rate=1e-3, max_gradient_norm=10.0),
)

ATARI = PQNConfig(
    preset="pqn-atari",
    env="Breakout-v5",
    total_steps=50_000_000,
    # Gallici et al. 2025: 128 environments, 32 steps, 2 epochs of 32 minibatches.
    envs_per_actor=64,
    batch_size=128,
    policy_lag="1",
    reward_clip=1.0,
    checkpoint=CheckpointConfig(interval=200),
    network=NetworkConfig(torso="shallow", hidden_sizes=(512,), frame_stack=4, layer_norm=True),
)

PONG = dataclasses.replace(
    ATARI,
    preset="pqn-pong",
    env="Pong-v5",
    # As in ppo-pong: smaller images cost less, and none of the six actions sticks.
    env_options={"img_height": 56, "img_width": 56},
    atari_protocol="impala",
    total_steps=2_000_000,
    envs_per_actor=16,
    batch_size=16,
    num_minibatches=4,
    epsilon_end=0.01,
    optimizer=dataclasses.replace(ATARI.optimizer, learning_rate=5e-4),
    checkpoint=CheckpointConfig(interval=1000),
    network=NetworkConfig(
        torso="small", hidden_sizes=(256,), frame_stack=4, pixels="normalized", layer_norm=True
    ),
)

PRESETS: tuple[tuple[Config, str], ...] = (
    (CARTPOLE, "CartPole-v1 with PQN: returns of 500 in under a minute on two CPU cores."),
    (ATARI, "Atari with PQN's network and hyper-parameters."),
    (PONG, "Pong with PQN on small images: returns of 19.95 to 21 in 23 minutes on two CPU cores."),
)
"""Each with what it is for."""
