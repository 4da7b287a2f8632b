"""Configurations that work, by name: those of the library, and your own."""

from __future__ import annotations

import dataclasses
import difflib

from sebulba import plugins
from sebulba.config import CheckpointConfig, Config, NetworkConfig, OptimizerConfig
from sebulba.learners.ppo import PPOConfig
from sebulba.learners.pqn import PQNConfig
from sebulba.learners.r2d2 import R2D2Config, ReplayCheckpointConfig
from sebulba.learners.replay.host import ReplayConfig
from sebulba.learners.vtrace import VTraceConfig
from sebulba.validation import ConfigError

_CATCH = VTraceConfig(
    preset="vtrace-catch",
    env="sebulba/Catch",
    total_steps=200_000,
    envs_per_actor=32,
    batch_size=32,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-3),
)

_CARTPOLE = VTraceConfig(
    preset="vtrace-cartpole",
    env="CartPole-v1",
    total_steps=500_000,
    envs_per_actor=16,
    batch_size=16,
    unroll_length=16,
    reward_scale=0.05,
    # With ten times as much, the last games were lost to random actions: 452 to 497 at the end.
    entropy_cost=0.001,
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, max_gradient_norm=0.5),
    log_every=100,
)

_GENERIC = dataclasses.replace(
    _CARTPOLE,
    preset="vtrace-generic",
    env="Acrobot-v1",
    lambda_=0.95,
    reward_scale=0.1,
    entropy_cost=0.01,
    network=NetworkConfig(hidden_sizes=(128, 128)),
)

_PENDULUM = dataclasses.replace(
    _CARTPOLE,
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

_MINIGRID = dataclasses.replace(
    _CARTPOLE,
    preset="vtrace-minigrid",
    env="MiniGrid-DoorKey-5x5-v0",
    envs_per_actor=32,
    batch_size=32,
    lambda_=0.95,
    total_steps=800_000,
    # One reward, at the goal: below 1, and less after more steps.
    reward_scale=1.0,
    entropy_cost=0.002,
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
    optimizer=OptimizerConfig(
        name="rmsprop",
        learning_rate=6e-4,
        rms_decay=0.99,
        epsilon=0.01 / 640**2,
        max_gradient_norm=40 / 640,
    ),
)

_PROCGEN = dataclasses.replace(
    _ATARI,
    preset="vtrace-procgen",
    env="CoinrunEasy-v0",
    total_steps=25_000_000,
    discount=0.999,
    reward_clip=None,
    reward_scale=0.1,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, max_gradient_norm=0.5),
    network=dataclasses.replace(_ATARI.network, frame_stack=1),
)

_SHALLOW = dataclasses.replace(
    _ATARI,
    preset="vtrace-atari-shallow",
    envs_per_actor=16,
    batch_size=16,
    # Adam instead of the paper's RMSProp, whose large epsilon makes the first million
    # frames slow: on Breakout, 200,000 steps end at 3.9 instead of 2.2.
    optimizer=OptimizerConfig(name="adam", learning_rate=6e-4, epsilon=1e-5, max_gradient_norm=0.5),
    checkpoint=CheckpointConfig(interval=200),
    network=NetworkConfig(torso="shallow", hidden_sizes=(512,), frame_stack=4),
)

_PONG = dataclasses.replace(
    _SHALLOW,
    preset="vtrace-pong",
    env="Pong-v5",
    total_steps=6_000_000,
    # Small updates, and many: what is slow is to learn to see the ball.
    envs_per_actor=8,
    batch_size=8,
    unroll_length=10,
    log_every=200,
    checkpoint=CheckpointConfig(interval=5000),
    network=NetworkConfig(torso="small", hidden_sizes=(256,), frame_stack=4, pixels="normalized"),
)

_FOOTBALL = dataclasses.replace(
    _PONG,
    preset="vtrace-football",
    env="gfootball/academy_empty_goal_close-v1",
    total_steps=150_000,
    unroll_length=16,
    reward_clip=None,
    # The score is 1, within some ten steps of the start: what matters is to try the shot.
    entropy_cost=0.003,
    log_every=50,
    checkpoint=CheckpointConfig(interval=500),
    # The observation is a map of four planes: both teams, the ball and the active player.
    network=dataclasses.replace(_PONG.network, frame_stack=1),
)

_VIZDOOM = dataclasses.replace(_FOOTBALL, preset="vtrace-vizdoom", env="D1Basic-v1")

_MUJOCO = dataclasses.replace(
    _CARTPOLE,
    preset="vtrace-mujoco",
    env="HalfCheetah-v4",
    total_steps=1_000_000,
    lambda_=0.95,
    # Values are a hundred times the rewards, which are some 3 in each step.
    reward_scale=0.02,
    entropy_cost=0.0,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, max_gradient_norm=0.5),
    log_every=200,
    # After Huang et al. 2022 ("The 37 Implementation Details of PPO"), but for the first deviation:
    # with 1, most actions are cut off at their bounds: HalfCheetah ended at 435 and not at 2,683.
    network=NetworkConfig(
        activation="tanh",
        separate_value=True,
        normalize_observations=True,
        squash="clip",
        initial_log_std=-1.0,
    ),
)

_MEMORY = dataclasses.replace(
    _CATCH,
    preset="vtrace-memory",
    env="sebulba/Memory",
    total_steps=500_000,
    envs_per_actor=16,
    batch_size=16,
    network=NetworkConfig(core="lstm", core_size=64, hidden_sizes=(64,)),
    optimizer=OptimizerConfig(name="adam", learning_rate=2e-3),
)

_R2D2_CATCH = R2D2Config(
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

_R2D2_ATARI = R2D2Config(
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

_PPO_CARTPOLE = PPOConfig(
    preset="ppo-cartpole",
    env="CartPole-v1",
    total_steps=500_000,
    envs_per_actor=8,
    batch_size=8,
    policy_lag="1",
    entropy_cost=0.0,
    reward_scale=0.05,
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, epsilon=1e-5, max_gradient_norm=0.5),
)

_PPO_ATARI = PPOConfig(
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

_PPO_PONG = dataclasses.replace(
    _PPO_ATARI,
    preset="ppo-pong",
    env="Pong-v5",
    total_steps=4_000_000,
    unroll_length=64,
    num_epochs=3,
    optimizer=dataclasses.replace(_PPO_ATARI.optimizer, learning_rate=6e-4),
    checkpoint=CheckpointConfig(interval=1000),
    network=NetworkConfig(torso="small", hidden_sizes=(256,), frame_stack=4, pixels="normalized"),
)

_PPO_MUJOCO = PPOConfig(
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
    # As in vtrace-mujoco.
    reward_scale=_MUJOCO.reward_scale,
    log_every=10,
    network=_MUJOCO.network,
    optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, epsilon=1e-5, max_gradient_norm=0.5),
)

_PPO_LUNARLANDER = dataclasses.replace(
    _PPO_CARTPOLE,
    preset="ppo-lunarlander",
    env="LunarLander-v3",
    total_steps=800_000,
    envs_per_actor=16,
    batch_size=16,
    unroll_length=128,
    num_minibatches=16,
    log_every=10,
    # With a horizon of 100 steps V-trace learned to hover, since the 100 for a landing come later.
    discount=0.999,
    lambda_=0.98,
    reward_scale=0.02,
    entropy_cost=0.01,
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, epsilon=1e-5, max_gradient_norm=0.5),
)

_PPO_MEMORY = dataclasses.replace(
    _PPO_CARTPOLE,
    preset="ppo-memory",
    env="sebulba/Memory",
    envs_per_actor=16,
    batch_size=16,
    unroll_length=32,
    reward_scale=1.0,
    entropy_cost=0.01,
    network=NetworkConfig(core="lstm", core_size=64, hidden_sizes=(64,)),
)

_PQN_ATARI = PQNConfig(
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

_PQN_PONG = dataclasses.replace(
    _PQN_ATARI,
    preset="pqn-pong",
    env="Pong-v5",
    total_steps=4_000_000,
    envs_per_actor=16,
    batch_size=16,
    num_minibatches=4,
    epsilon_end=0.01,
    optimizer=dataclasses.replace(_PQN_ATARI.optimizer, learning_rate=5e-4),
    checkpoint=CheckpointConfig(interval=1000),
    network=NetworkConfig(
        torso="small", hidden_sizes=(256,), frame_stack=4, pixels="normalized", layer_norm=True
    ),
)

_PQN_CARTPOLE = PQNConfig(
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
    epsilon_end=0.05,
    exploration_fraction=0.2,
    network=NetworkConfig(hidden_sizes=(256, 256), layer_norm=True),
    optimizer=OptimizerConfig(name="radam", learning_rate=1e-3, max_gradient_norm=10.0),
)

PRESETS: dict[str, tuple[Config, str]] = {
    "vtrace-catch": (_CATCH, "Catch on a 10 x 5 board, in NumPy: solved in seconds."),
    "vtrace-cartpole": (
        _CARTPOLE,
        "CartPole-v1: returns of 490 to 500 in under a minute on two CPU cores.",
    ),
    "vtrace-pendulum": (
        _PENDULUM,
        "Pendulum-v1, continuous control: returns of -200 in a minute on two CPU cores.",
    ),
    "vtrace-minigrid": (
        _MINIGRID,
        "MiniGrid: the key, the door and the goal of DoorKey-5x5 in about a minute.",
    ),
    "vtrace-generic": (
        _GENERIC,
        "Whatever has no preset of its own and shows no images: Acrobot-v1, for example.",
    ),
    "vtrace-mujoco": (
        _MUJOCO,
        "MuJoCo and the DM Control Suite, continuous control, with HalfCheetah-v4.",
    ),
    "vtrace-football": (
        _FOOTBALL,
        "Google Research Football: nearly every game of academy_empty_goal_close is won.",
    ),
    "vtrace-procgen": (_PROCGEN, "Procgen with the deep residual network. It needs Qt 5."),
    "vtrace-vizdoom": (_VIZDOOM, "ViZDoom, with D1Basic."),
    "vtrace-atari": (
        _ATARI,
        "Atari with IMPALA's deep residual network (15 convolutions) and hyper-parameters.",
    ),
    "vtrace-atari-shallow": (
        _SHALLOW,
        "Atari with the three-convolution network: what a laptop can train.",
    ),
    "vtrace-pong": (
        _PONG,
        "Pong with the small network: 11 to 21 after an hour and a half on two CPU cores.",
    ),
    "vtrace-memory": (
        _MEMORY,
        "A cue to be remembered, with an LSTM; unsolvable without one.",
    ),
    "ppo-cartpole": (_PPO_CARTPOLE, "CartPole-v1 with PPO: solved in about a minute."),
    "ppo-lunarlander": (
        _PPO_LUNARLANDER,
        "LunarLander-v3 with PPO: returns of 270 within minutes on two CPU cores.",
    ),
    "ppo-memory": (_PPO_MEMORY, "The memory task with PPO, in minibatches of whole trajectories."),
    "ppo-atari": (_PPO_ATARI, "Atari with PPO's network and hyper-parameters."),
    "ppo-pong": (_PPO_PONG, "Pong with PPO and the small network, for two CPU cores."),
    "ppo-mujoco": (_PPO_MUJOCO, "MuJoCo with PPO: tanh networks and normalized observations."),
    "pqn-cartpole": (_PQN_CARTPOLE, "CartPole-v1 with PQN: solved in about a minute."),
    "pqn-atari": (_PQN_ATARI, "Atari with PQN's network and hyper-parameters."),
    "pqn-pong": (_PQN_PONG, "Pong with PQN and the small network, for two CPU cores."),
    "r2d2-catch": (_R2D2_CATCH, "Catch with R2D2."),
    "r2d2-memory": (
        dataclasses.replace(
            _R2D2_CATCH,
            preset="r2d2-memory",
            env="sebulba/Memory",
            # Gradients end at the burn-in: what is learned from must hold the 12 steps from cue
            # to answer. With the 10 of Catch, answers were learned and lost again.
            unroll_length=20,
            sequence_length=40,
            target_update_period=50,
            epsilon_base=0.2,
            replay=ReplayConfig(capacity=5_000, min_size=250, samples_per_insert=4.0),
        ),
        "The memory task with R2D2: recurrent state stored in the replay.",
    ),
    "r2d2-cartpole": (
        dataclasses.replace(
            _R2D2_CATCH,
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
        ),
        "CartPole-v1 with R2D2: solved in about two minutes on two CPU cores.",
    ),
    "r2d2-atari": (_R2D2_ATARI, "Atari with R2D2's network and hyper-parameters."),
    "r2d2-atari-small": (
        dataclasses.replace(
            _R2D2_ATARI,
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
            optimizer=dataclasses.replace(_R2D2_ATARI.optimizer, learning_rate=3e-4, epsilon=1e-6),
            checkpoint=ReplayCheckpointConfig(interval=500),
            replay=ReplayConfig(capacity=25_000, min_size=500, samples_per_insert=4.0),
        ),
        "Atari with R2D2 for one machine: fewer actors, more updates, replay within 8 GiB.",
    ),
}
"""Every preset and what it is for."""


def register(config: Config, text: str) -> None:
    """Have ``get`` and the command line know ``config`` by its ``preset``, in place of any before.

    On the command line it is called ``module:preset``, after the module that registers it.

    Args:
      config: with a name of its own as ``preset``.
      text: what it is for, in a line.

    Raises:
      ConfigError: it has no name, or one with a colon.
    """
    if not config.preset or ":" in config.preset:
        raise ConfigError(
            f"preset is {config.preset!r}: a preset must have a name without a colon. Set it with "
            "dataclasses.replace(config, preset=...)."
        )
    PRESETS[config.preset] = (config, text)


def get(name: str) -> Config:
    """The preset called ``name``.

    For ``module:preset``, the module is imported first, to register it. The config says so in its
    ``preset``: whoever loads it from a run directory then does the same.

    Raises:
      ConfigError: there is none; the message says which are close.
    """
    known = plugins.resolve(name)
    if known not in PRESETS:
        module = name.removesuffix(known)
        close = [module + each for each in difflib.get_close_matches(known, PRESETS, 3, 0.3)]
        hint = f"did you mean {' or '.join(close)}?" if close else "see: sebulba presets."
        raise ConfigError(f"preset {name!r} is unknown: it must be one of {list(PRESETS)}; {hint}")
    return dataclasses.replace(PRESETS[known][0], preset=name)
