"""Training: from a config, and a user's own parts, to a result."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import optax

from sebulba import algorithms
from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.devices import distributed, placement
from sebulba.devices.topology import Topology
from sebulba.learners import Learner, make_optimizer
from sebulba.metrics.meter import Row
from sebulba.metrics.progress import Progress
from sebulba.rundir.directory import RunDirectory
from sebulba.runners import environments
from sebulba.runners.parts import Parts
from sebulba.runners.sebulba import SebulbaRun
from sebulba.types import Agent, MakeEnv, Params
from sebulba.validation import ConfigError


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
    algorithm: Algorithm[Any] | None = None,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    optimizer: optax.GradientTransformation | None = None,
    topology: Topology | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train; each part that is not given is made from ``config``.

    Ctrl-C, SIGTERM and SIGHUP save a checkpoint, where there is a run directory, and then raise
    ``KeyboardInterrupt``.

    Args:
      config: a preset, or one made by hand.
      algorithm: in place of the registered one whose config class this is.
      make_env: ``make_env(num_envs, seed)``, in place of ``config.env``. The reference agent's
        LSTM also takes the last action, with which ``envs.PreviousAction`` wraps them.
      agent: in place of the reference agent. Where ``config.network.core`` is lstm, environments
        that the config names give it the last action too.
      optimizer: in place of ``config.optimizer``.
      topology: in place of ``Topology.split(config.num_inference_devices)``.
      progress: show progress on the terminal.

    Raises:
      ConfigError: the config cannot work; nothing was written.
      Exception: the first failure of any thread, with a note of where it came from.
    """
    algorithm = algorithm or algorithms.of(config)
    config.validate()
    unrolls_per_turn = algorithm.unrolls_per_turn(config)
    if make_env is not None:
        config = dataclasses.replace(config, env=environments.OWN_ENV)
    if config.out is not None:  # From Python it may be a string.
        config = dataclasses.replace(config, out=Path(config.out).expanduser())
    notes: list[str | None] = []
    if topology is None:
        topology, note = placement.choose(config, lambda n: algorithm.fits(config, n))
        notes.append(note)
    _check_division(algorithm, config, topology)
    num_actors = config.actors_per_device * len(topology.inference)
    if make_env is None:
        make_env = environments.default_make_env(config, num_actors)
    elif agent is None:
        make_env = environments.with_last_action(config, make_env)
    spec = environments.probe(make_env)._replace(num_envs=config.envs_per_actor)
    agent = agent or algorithm.make_agent(config, spec, "training")
    optimizer = optimizer or make_optimizer(
        config.optimizer, algorithm.num_updates(config, num_actors, topology.num_hosts)
    )
    learner = algorithm.make_learner(config, agent, spec, optimizer, topology)
    _check_learner(learner)
    notes.append(learner.prepare())
    distributed.agree(config, algorithm.name, topology.layout)
    num_envs = topology.num_hosts * num_actors * config.envs_per_actor
    parts = Parts(
        config=config,
        topology=topology,
        make_env=make_env,
        spec=spec,
        agent=agent,
        learner=learner,
        exploration=algorithm.make_exploration(config, num_envs),
        unrolls_per_turn=unrolls_per_turn,
    )
    title = f"{config.preset or algorithm.name} · {config.env} · {topology}"
    with RunDirectory(config, algorithm.name) as directory, distributed.naming_the_host():
        run = SebulbaRun(parts, directory)
        shown = progress and distributed.is_primary()
        with Progress(config.total_steps, title, enabled=shown) as display:
            run.run(display, [note for note in notes if note])
    return TrainResult(run.local_params(), run.rows, agent, make_env, config, run.updates)


def _check_division(algorithm: Algorithm[Any], config: Config, topology: Topology) -> None:
    learners = len(topology.learners)
    changes = changed_options(config, algorithm.fit(config, learners))
    if changes:
        raise ConfigError(
            f"envs_per_actor {config.envs_per_actor} and batch_size {config.batch_size}, in "
            f"{config.num_microbatches or 1} microbatch(es), do not divide over the {learners} "
            f"learner devices of {topology.layout}: each takes an equal part. Set {changes}, or "
            "choose --num-inference-devices so that the learners divide them."
        )


def changed_options(before: Config, after: Config) -> str:
    """The options that make ``after`` of ``before``; "" where they are the same."""
    return " ".join(
        f"--{field.name.replace('_', '-')} {getattr(after, field.name)}"
        for field in dataclasses.fields(after)
        if getattr(after, field.name) != getattr(before, field.name)
    )


def _check_learner(learner: object) -> None:
    if not isinstance(learner, Learner):
        raise TypeError(
            f"the algorithm's make_learner gave a {type(learner).__name__}, which is no "
            "sebulba.Learner: make it inherit from sebulba.Learner, whose other methods it needs."
        )
