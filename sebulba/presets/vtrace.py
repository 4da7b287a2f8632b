"""V-trace's configurations that work."""

from __future__ import annotations

import dataclasses

from sebulba.config import CheckpointConfig, Config, NetworkConfig, OptimizerConfig
from sebulba.learners.vtrace import VTraceConfig

CATCH = VTraceConfig(
    preset="vtrace-catch",
    env="sebulba/Catch",
    total_steps=200_000,
    envs_per_actor=32,
    batch_size=32,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-3),
)

CARTPOLE = VTraceConfig(
    preset="vtrace-cartpole",
    env="CartPole-v1",
    total_steps=500_000,
    envs_per_actor=16,
    batch_size=16,
    unroll_length=16,
    reward_scale=0.05,
    # With ten times as much, the last games were lost to random actions: 452 to 497 at the end.
    entropy_cost=0.001,
    # With ReLU, one of ten seeds lost what it had learned in the last steps, and ended at 390.
    network=NetworkConfig(activation="tanh"),
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, max_gradient_norm=0.5),
    log_every=100,
)

GENERIC = dataclasses.replace(
    CARTPOLE,
    preset="vtrace-generic",
    env="Acrobot-v1",
    lambda_=0.95,
    reward_scale=0.1,
    entropy_cost=0.01,
    network=NetworkConfig(hidden_sizes=(128, 128)),
)

PENDULUM = dataclasses.replace(
    CARTPOLE,
    preset="vtrace-pendulum",
    env="Pendulum-v1",
    # Rewards are down to -16 in each step. With a longer horizon, values of hundreds have to be
    # learned first, and until then noise drives the means to where tanh cannot tell them apart.
    discount=0.9,
    lambda_=0.9,
    reward_scale=0.1,
    entropy_cost=0.01,
    network=NetworkConfig(normalize_observations=True),
)

MINIGRID = dataclasses.replace(
    CARTPOLE,
    preset="vtrace-minigrid",
    env="MiniGrid-DoorKey-5x5-v0",
    envs_per_actor=32,
    batch_size=32,
    lambda_=0.95,
    total_steps=800_000,
    # One reward, at the goal: below 1, and less after more steps.
    reward_scale=1.0,
    entropy_cost=0.002,
    network=NetworkConfig(),  # With ReLU, as it was measured.
)

ATARI = VTraceConfig(
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
    optimizer=OptimizerConfig(
        name="rmsprop",
        learning_rate=6e-4,
        rms_decay=0.99,
        epsilon=0.01 / 640**2,
        max_gradient_norm=40 / 640,
    ),
)

PROCGEN = dataclasses.replace(
    ATARI,
    preset="vtrace-procgen",
    env="CoinrunEasy-v0",
    total_steps=25_000_000,
    discount=0.999,
    reward_clip=None,
    reward_scale=0.1,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, max_gradient_norm=0.5),
    network=dataclasses.replace(ATARI.network, frame_stack=1),
)

SHALLOW = dataclasses.replace(
    ATARI,
    preset="vtrace-atari-shallow",
    envs_per_actor=16,
    batch_size=16,
    # Adam instead of the paper's RMSProp, whose large epsilon makes the first million
    # frames slow: on Breakout, 200,000 steps end at 3.9 instead of 2.2.
    optimizer=OptimizerConfig(name="adam", learning_rate=6e-4, epsilon=1e-5, max_gradient_norm=0.5),
    checkpoint=CheckpointConfig(interval=200),
    network=NetworkConfig(torso="shallow", hidden_sizes=(512,), frame_stack=4),
)

PONG = dataclasses.replace(
    SHALLOW,
    preset="vtrace-pong",
    env="Pong-v5",
    # As in the other presets for Pong: small images, and six actions, none of which sticks.
    env_options={"img_height": 56, "img_width": 56},
    atari_protocol="impala",
    total_steps=2_500_000,
    # Small updates, and many: what is slow is to learn to see the ball.
    envs_per_actor=5,
    batch_size=5,
    # A point lasts 40 steps and more. With trajectories of 10 steps, 8 environments and a rate of
    # 6e-4, a mean return of 0 took 1.6 million steps in place of 1.1 million.
    unroll_length=32,
    log_every=200,
    checkpoint=CheckpointConfig(interval=5000),
    network=NetworkConfig(torso="small", hidden_sizes=(256,), frame_stack=4, pixels="normalized"),
    optimizer=dataclasses.replace(SHALLOW.optimizer, learning_rate=1e-3),
)

FOOTBALL = dataclasses.replace(
    SHALLOW,
    preset="vtrace-football",
    env="gfootball/academy_empty_goal_close-v1",
    total_steps=150_000,
    envs_per_actor=8,
    batch_size=8,
    unroll_length=16,
    reward_clip=None,
    # The score is 1, within some ten steps of the start: what matters is to try the shot.
    entropy_cost=0.003,
    log_every=50,
    checkpoint=CheckpointConfig(interval=500),
    # The observation is a map of four planes: both teams, the ball and the active player.
    network=dataclasses.replace(PONG.network, frame_stack=1),
)

VIZDOOM = dataclasses.replace(FOOTBALL, preset="vtrace-vizdoom", env="D1Basic-v1")

MEMORY = dataclasses.replace(
    CATCH,
    preset="vtrace-memory",
    env="sebulba/Memory",
    total_steps=500_000,
    envs_per_actor=16,
    batch_size=16,
    network=NetworkConfig(core="lstm", core_size=64, hidden_sizes=(64,)),
    optimizer=OptimizerConfig(name="adam", learning_rate=2e-3),
)

PRESETS: tuple[tuple[Config, str], ...] = (
    (CATCH, "Catch on a 10 x 5 board, in NumPy: solved in seconds."),
    (CARTPOLE, "CartPole-v1: returns of 498 to 500 in under a minute on two CPU cores."),
    (PENDULUM, "Pendulum-v1, continuous control: returns of -200 in minutes on two CPU cores."),
    (MINIGRID, "MiniGrid: the key, the door and the goal of DoorKey-5x5 in about a minute."),
    (GENERIC, "Whatever has no preset of its own and shows no images: Acrobot-v1, for example."),
    (FOOTBALL, "Google Research Football: nearly every game of academy_empty_goal_close is won."),
    (PROCGEN, "Procgen with the deep residual network. It needs Qt 5."),
    (VIZDOOM, "ViZDoom: returns of 0.7 to 0.9 of D1Basic, where random actions get -0.2."),
    (ATARI, "Atari with IMPALA's deep residual network (15 convolutions) and hyper-parameters."),
    (SHALLOW, "Atari with the three-convolution network: what a laptop can train."),
    (PONG, "Pong with small images: returns of 17 to 19 after 24 minutes on two CPU cores."),
    (MEMORY, "A cue to be remembered, with an LSTM; unsolvable without one."),
)
"""Each with what it is for."""
