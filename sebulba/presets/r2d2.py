"""R2D2's configurations that work."""

from __future__ import annotations

import dataclasses

from sebulba.config import Config, NetworkConfig, OptimizerConfig
from sebulba.learners.r2d2 import R2D2Config, ReplayCheckpointConfig
from sebulba.learners.replay.host import ReplayConfig

CATCH = R2D2Config(
    preset="r2d2-catch",
    env="sebulba/Catch",
    total_steps=300_000,
    envs_per_actor=16,
    unroll_length=10,
    sequence_length=20,
    burn_in=10,
    batch_size=32,
    target_update_period=100,
    discount=0.99,
    network=NetworkConfig(core="lstm", core_size=64, hidden_sizes=(64,)),
    optimizer=OptimizerConfig(
        name="adam", learning_rate=1e-3, decay_to_zero=False, max_gradient_norm=10.0
    ),
    replay=ReplayConfig(capacity=10_000, min_size=500, samples_per_insert=1.0),
    log_every=100,
)

MEMORY = dataclasses.replace(
    CATCH,
    preset="r2d2-memory",
    env="sebulba/Memory",
    # Gradients end at the burn-in: what is learned from must hold the 12 steps from cue
    # to answer. With the 10 of Catch, answers were learned and lost again.
    unroll_length=20,
    sequence_length=40,
    target_update_period=50,
    epsilon_base=0.2,
    replay=ReplayConfig(capacity=5_000, min_size=250, samples_per_insert=4.0),
)

CARTPOLE = dataclasses.replace(
    CATCH,
    preset="r2d2-cartpole",
    env="CartPole-v1",
    total_steps=700_000,
    discount=0.997,
    # A cart that drifts falls after 150 steps: values must travel that far in 8,500
    # updates, n_step at a time between two copies to the target network. With copies every
    # 100 updates some seeds stayed at returns of 150.
    target_update_period=40,
    epsilon_base=0.2,
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, max_gradient_norm=1.0),
    # Nearly all that the run sees. Once the early falls had left a replay of 10,000
    # sequences, some policies forgot how to avoid them: returns fell back to 380, and one
    # seed ended at 470.
    replay=ReplayConfig(capacity=60_000, min_size=500, samples_per_insert=4.0),
)

ATARI = R2D2Config(
    preset="r2d2-atari",
    env="Breakout-v5",
    total_steps=2_500_000_000,
    envs_per_actor=64,
    actors_per_device=4,
    batch_size=64,
    network=NetworkConfig(
        torso="shallow", hidden_sizes=(512,), frame_stack=4, core="lstm", core_size=512
    ),
    replay=ReplayConfig(capacity=100_000, min_size=5_000, samples_per_insert=0.8),
)

ATARI_SMALL = dataclasses.replace(
    ATARI,
    preset="r2d2-atari-small",
    env="Pong-v5",
    total_steps=10_000_000,
    envs_per_actor=16,
    actors_per_device=2,
    # A run of this size has thousands of updates, not millions: each is smaller, more of
    # them follow from each sequence, and they and the target network move faster.
    # (Values travel n_step steps between two copies to the target network: with one every
    # 400 updates, those of Breakout had hardly moved after 1,000.)
    batch_size=16,
    target_update_period=50,
    optimizer=dataclasses.replace(ATARI.optimizer, learning_rate=3e-4, epsilon=1e-6),
    checkpoint=ReplayCheckpointConfig(interval=500),
    replay=ReplayConfig(capacity=25_000, min_size=500, samples_per_insert=4.0),
)

PONG = dataclasses.replace(
    ATARI_SMALL,
    preset="r2d2-pong",
    # As in the other presets for Pong: small images, and six actions, none of which sticks.
    env_options={"img_height": 56, "img_width": 56},
    atari_protocol="impala",
    total_steps=1_250_000,
    actors_per_device=1,
    # Small updates, and many, with a large rate. With 5e-4, a mean return of 0 took 0.8 million
    # steps in place of 0.6 million.
    unroll_length=20,
    sequence_length=40,
    burn_in=10,
    batch_size=8,
    discount=0.99,
    target_update_period=100,
    epsilon_base=0.2,
    optimizer=dataclasses.replace(ATARI_SMALL.optimizer, learning_rate=1e-3),
    log_every=100,
    checkpoint=ReplayCheckpointConfig(interval=1000),
    network=NetworkConfig(
        torso="small",
        hidden_sizes=(256,),
        frame_stack=4,
        pixels="normalized",
        core="lstm",
        core_size=256,
    ),
    replay=dataclasses.replace(ATARI_SMALL.replay, samples_per_insert=2.0),
)

PRESETS: tuple[tuple[Config, str], ...] = (
    (CATCH, "Catch with R2D2: solved in about a minute."),
    (MEMORY, "The memory task with R2D2: an LSTM's state is stored in the replay."),
    (CARTPOLE, "CartPole-v1 with R2D2: returns of 500 after three minutes on two CPU cores."),
    (ATARI, "Atari with R2D2's network and hyper-parameters."),
    (
        ATARI_SMALL,
        "Atari with R2D2 for one machine: fewer actors, more updates, replay within 8 GiB.",
    ),
    (PONG, "Pong with R2D2 on small images: returns of about 20 in 23 minutes on two CPU cores."),
)
"""Each with what it is for."""
