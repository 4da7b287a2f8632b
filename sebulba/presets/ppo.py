"""PPO's configurations that work."""

from __future__ import annotations

import dataclasses

from sebulba.config import CheckpointConfig, Config, NetworkConfig, OptimizerConfig
from sebulba.learners.ppo import PPOConfig

CARTPOLE = PPOConfig(
    preset="ppo-cartpole",
    env="CartPole-v1",
    total_steps=500_000,
    envs_per_actor=8,
    batch_size=8,
    policy_lag="1",
    entropy_cost=0.0,
    reward_scale=0.05,
    log_every=10,
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, epsilon=1e-5, max_gradient_norm=0.5),
)

ATARI = PPOConfig(
    preset="ppo-atari",
    env="Breakout-v5",
    total_steps=10_000_000,
    # Huang et al. 2022: 8 environments, 128 steps, 4 epochs of 4 minibatches.
    envs_per_actor=8,
    batch_size=8,
    policy_lag="1",
    clip_ratio=0.1,
    clip_value=0.1,
    reward_clip=1.0,
    checkpoint=CheckpointConfig(interval=200),
    network=NetworkConfig(torso="shallow", hidden_sizes=(512,), frame_stack=4),
)

PONG = dataclasses.replace(
    ATARI,
    preset="ppo-pong",
    env="Pong-v5",
    # Smaller images cost less than half as much in the convolutions. With 42 x 42, an update costs
    # even less, but returns stay between 0 and 3 for up to a million steps.
    env_options={"img_height": 56, "img_width": 56},
    # Six actions, none of which sticks: as in most reports of how soon Pong is learned.
    atari_protocol="impala",
    total_steps=1_000_000,
    envs_per_actor=16,
    batch_size=16,
    unroll_length=32,
    num_epochs=3,
    # Much at first, so that no point is lost again and again in the same way, and none in the end:
    # with 0.01 throughout, actions that were drawn lost a point or two more than the best ones.
    entropy_cost=0.02,
    entropy_decay_to_zero=True,
    # Minibatches of 32 steps: with 4 minibatches, a mean return of 0 took 700,000 steps and more.
    num_minibatches=16,
    # A point lasts 40 steps and more. With 0.95 and two frames, one of three seeds ended at 12.
    lambda_=0.98,
    optimizer=dataclasses.replace(ATARI.optimizer, learning_rate=5e-4),
    checkpoint=CheckpointConfig(interval=1000),
    # With two, some seeds lost every other point for long.
    network=NetworkConfig(torso="small", hidden_sizes=(256,), frame_stack=4, pixels="normalized"),
)

BREAKOUT = dataclasses.replace(
    PONG,
    preset="ppo-breakout",
    env="Breakout-v5",
    total_steps=2_500_000,
    # Breakout's background is black, and Pong's gray. With normalized pixels, which make black a
    # negative number, returns were half as high after 0.5 to 1 million steps, and one of three
    # seeds learned nothing.
    network=dataclasses.replace(PONG.network, pixels="scaled"),
)

MUJOCO = PPOConfig(
    preset="ppo-mujoco",
    env="HalfCheetah-v4",
    total_steps=1_000_000,
    # Updates of 2,048 steps, as those of Huang et al. 2022, but of several environments, and in
    # larger minibatches with a larger rate, which take half the time.
    envs_per_actor=8,
    batch_size=8,
    unroll_length=256,
    num_epochs=10,
    num_minibatches=8,
    policy_lag="1",
    entropy_cost=0.0,
    # Values are a hundred times the rewards, which are some 3 in each step.
    reward_scale=0.02,
    log_every=10,
    # As theirs, but for the first deviation: with 1, most actions are cut off at their bounds.
    network=NetworkConfig(
        activation="tanh",
        separate_value=True,
        normalize_observations=True,
        squash="clip",
        initial_log_std=-1.0,
    ),
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, epsilon=1e-5, max_gradient_norm=0.5),
)

LUNARLANDER = dataclasses.replace(
    CARTPOLE,
    preset="ppo-lunarlander",
    env="LunarLander-v3",
    total_steps=800_000,
    envs_per_actor=16,
    batch_size=16,
    unroll_length=128,
    num_minibatches=16,
    # With a horizon of 100 steps V-trace learned to hover, since the 100 for a landing come later.
    discount=0.999,
    lambda_=0.98,
    reward_scale=0.02,
    entropy_cost=0.01,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, epsilon=1e-5, max_gradient_norm=0.5),
)

MEMORY = dataclasses.replace(
    CARTPOLE,
    preset="ppo-memory",
    env="sebulba/Memory",
    envs_per_actor=16,
    batch_size=16,
    unroll_length=32,
    reward_scale=1.0,
    entropy_cost=0.01,
    network=NetworkConfig(core="lstm", core_size=64, hidden_sizes=(64,)),
)

PRESETS: tuple[tuple[Config, str], ...] = (
    (CARTPOLE, "CartPole-v1 with PPO: at 490 within two of its five minutes, on two CPU cores."),
    (LUNARLANDER, "LunarLander-v3 with PPO: returns of 270 within minutes on two CPU cores."),
    (MEMORY, "The memory task with PPO, in minibatches of whole trajectories."),
    (ATARI, "Atari with PPO's network and hyper-parameters."),
    (PONG, "Pong with PPO on small images: returns of 18 to 20 in 14 minutes on two CPU cores."),
    (
        BREAKOUT,
        "Breakout with PPO on small images: returns of 40 to 60 in 40 minutes on one CPU core.",
    ),
    (
        MUJOCO,
        "MuJoCo with PPO: 4,000 to 5,200 of HalfCheetah-v4, 2,000 to 2,650 of Hopper-v4.",
    ),
)
"""Each with what it is for."""
