"""Training: from a config, and a user's own parts, to a result."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import optax

from sebulba import algorithms, allocator, distributed, envs, placement
from sebulba.config import Config, ConfigError, VTraceConfig
from sebulba.display import Progress
from sebulba.learners import Learner, make_optimiser, num_pieces
from sebulba.meter import Row
from sebulba.rundir import RunDirectory
from sebulba.topology import Topology
from sebulba.training import TrainingRun
from sebulba.types import Agent, Env, EnvSpec, MakeEnv, Params
from sebulba.validation import validate

OWN_ENV = "(make_env)"
"""``Config.env`` of a run whose environments were given as ``make_env``."""

MakeLearner = Callable[[Agent, EnvSpec, optax.GradientTransformation, Topology], Learner]


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training leaves.

    Attributes:
      params: the last parameters, on the first learner device.
      metrics: the rows of ``metrics.jsonl`` that this call produced.
      agent: acts with ``params``: V-trace's samples, R2D2's takes the best action.
      make_env: makes the environments that ``agent`` was trained in.
      config: what was run.
      updates: updates done, those of a resumed run included.
    """

    params: Params
    metrics: list[Row]
    agent: Agent
    make_env: MakeEnv
    config: Config
    updates: int


def train(
    config: Config,
    *,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    optimiser: optax.GradientTransformation | None = None,
    make_learner: MakeLearner | None = None,
    topology: Topology | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train; each part that is not given is made from ``config``.

    Under glibc the first call has this process's malloc keep what is freed, in one heap
    (`sebulba.allocator`).

    Ctrl-C, SIGTERM and SIGHUP save a checkpoint, where there is a run directory, and then raise
    ``KeyboardInterrupt``.

    Args:
      config: a preset, or one made by hand.
      make_env: ``make_env(num_envs, seed)``, in place of ``config.env``. The reference agent's
        LSTM also takes the last action, with which ``envs.PreviousAction`` wraps them.
      agent: in place of the reference agent. Where ``config.network.core`` is lstm, environments
        that the config names give it the last action too.
      optimiser: in place of ``config.optimiser``.
      make_learner: in place of the learner of ``config``'s algorithm.
      topology: in place of ``Topology.split(config.num_inference)``.
      progress: show progress on the terminal.

    Raises:
      ConfigError: the config cannot work; nothing was written.
      Exception: the first failure of any thread, with a note of where it came from.
    """
    validate(config)
    if make_env is not None:
        config = dataclasses.replace(config, env=OWN_ENV)
    if config.out is not None:  # From Python it may be a string.
        config = dataclasses.replace(config, out=Path(config.out).expanduser())
    allocator.keep_freed_memory()
    notes: list[str] = []
    if topology is None:
        topology, note = placement.choose(config)
        notes += [note] if note else []
    _check_division(config, topology)
    num_actors = config.actors_per_device * len(topology.inference)
    if make_env is None:
        make_env = default_make_env(config, num_actors)
    elif agent is None:
        make_env = with_last_action(config, make_env)
    spec = probe(make_env)._replace(num_envs=config.envs_per_actor)
    agent = agent or algorithms.make_agent(config, spec)
    optimiser = optimiser or make_optimiser(
        config.optimiser, algorithms.num_updates(config, topology.num_hosts)
    )
    if make_learner is None:
        learner = algorithms.make_learner(config, agent, spec, optimiser, topology)
    else:
        learner = make_learner(agent, spec, optimiser, topology)
    distributed.agree(config, topology.layout)
    title = f"{config.preset or type(config).__name__} · {config.env} · {topology}"
    with RunDirectory(config) as directory, distributed.naming_the_host():
        run = TrainingRun(config, topology, make_env, spec, agent, learner, directory)
        shown = progress and distributed.is_lead()
        with Progress(config.total_steps, title, enabled=shown) as display:
            run.go(display, notes)
    return TrainResult(run.local_params(), run.rows, agent, make_env, config, run.updates)


def default_make_env(config: Config, num_actors: int = 1) -> MakeEnv:
    """The environments that ``config`` names; with the last action for recurrent networks.

    ``num_actors`` of them share this host's cores, unless ``config.env_threads`` says otherwise.

    Raises:
      ConfigError: the run had environments of the user's own.
    """
    if config.env == OWN_ENV:
        raise ConfigError(
            "env is '(make_env)': the run was trained in environments of your own, which only "
            "Python can make. Give make_env to sebulba.train or sebulba.evaluate_run again."
        )
    num_threads = env_threads(config, num_actors)

    def make_env(num_envs: int, seed: int) -> Env:
        try:
            return envs.make(
                config.env,
                num_envs,
                seed=seed,
                num_threads=num_threads,
                options=config.env_options,
                atari_protocol=config.atari_protocol,
            )
        except (TypeError, RuntimeError) as error:
            raise ConfigError(
                f"{config.env} cannot be made with env_options {config.env_options} ({error}): "
                "each must have the type that the environment wants. Set them with --env-options."
            ) from error

    return with_last_action(config, make_env)


def env_threads(config: Config, num_actors: int) -> int:
    """Threads of each actor's EnvPool, where ``num_actors`` share this host's cores."""
    return config.env_threads or max(1, cpu_cores() // num_actors)


def with_last_action(config: Config, make_env: MakeEnv) -> MakeEnv:
    """Environments as the reference network takes them: with the last action for an LSTM."""
    if config.network.core != "lstm":
        return make_env

    def make(num_envs: int, seed: int) -> Env:
        env = make_env(num_envs, seed)
        return env if envs.has_action(env.spec) else envs.PreviousAction(env)

    return make


def cpu_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def probe(make_env: MakeEnv) -> EnvSpec:
    """The spec of one environment.

    Raises:
      ConfigError: the environment cannot be made.
    """
    try:
        env = make_env(1, 0)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        return env.spec
    finally:
        env.close()


def _check_division(config: Config, topology: Topology) -> None:
    learners = len(topology.learners)
    if config.envs_per_actor % learners:
        raise ConfigError(
            f"envs_per_actor {config.envs_per_actor} is not a multiple of the {learners} learner "
            f"devices of {topology.layout}: each takes an equal part of every trajectory. Make it "
            f"{-(-config.envs_per_actor // learners) * learners}, or choose --num-inference so "
            "that the learners divide it."
        )
    part = config.envs_per_actor // learners
    # R2D2 divides sequences_per_update instead, and checks that itself.
    if isinstance(config, VTraceConfig) and part % num_pieces(config, topology):
        raise ConfigError(
            f"gradient_accumulation {config.gradient_accumulation} does not divide the {part} "
            f"environments of an actor that each learner device takes (envs_per_actor "
            f"{config.envs_per_actor} over {learners}): choose one of its divisors."
        )
