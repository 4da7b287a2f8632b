"""``train``: from a config, and possibly parts of the user's own, to trained parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from sebulba import algorithms
from sebulba.agents.pretrained import Pretrained
from sebulba.algorithms import Algorithm
from sebulba.config import Config, fields_from_json, flat, to_json
from sebulba.devices import cpu_threads, distributed, placement
from sebulba.devices.topology import Topology
from sebulba.learners import EpochLearner, Learner, TrajectoryLearner, make_optimizer
from sebulba.metrics.meter import Row
from sebulba.metrics.progress import Progress
from sebulba.metrics.shown import METRICS, Axis
from sebulba.metrics.sinks import Sink, checked_sinks
from sebulba.remote.settings import Listen
from sebulba.rundir import contents
from sebulba.rundir.directory import RunDirectory
from sebulba.rundir.run import plot
from sebulba.runners import environments, remote, video
from sebulba.runners.checking import check_given, make_check
from sebulba.runners.evaluation import Evaluator
from sebulba.runners.parts import Parts
from sebulba.runners.rows import Rows
from sebulba.runners.sebulba import SebulbaRun
from sebulba.runners.supervision import Supervision, supervised
from sebulba.runtime import memory
from sebulba.runtime.activity import OTHERS
from sebulba.types import Agent, ArrayTree, MakeEnv, Params
from sebulba.validation import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The result of training.

    Attributes:
      params: the last parameters, on the first learner device.
      metrics: the rows of ``metrics.jsonl`` that this call produced, the last 2,000 of them.
      agent: acts with ``params``. Policies sample actions, Q values give the best one.
      make_env: makes the environments that ``agent`` was trained in.
      config: the config of the run.
      updates: number of updates, including those before a resume.
    """

    params: Params
    metrics: list[Row]
    agent: Agent
    make_env: MakeEnv
    config: Config
    updates: int

    @property
    def fields(self) -> dict[str, Any]:
        """``config`` as one flat dict, ``{"optimizer.learning_rate": 0.001, ...}``."""
        return flat(fields_from_json(to_json(self.config, ""))[1])  # As ``Run`` reads them.

    def plot(self, metrics: Sequence[str] = METRICS, x: Axis = "steps") -> Figure:
        """Draw metrics over ``x``; see ``sebulba.plot``."""
        return plot(self, metrics, x)

    def play(self, seed: int = 0, max_steps: int = video.MAX_STEPS) -> Any:
        """One episode of the agent as a video in a notebook; see ``sebulba.record``.

        Raises:
          ConfigError: IPython or imageio is missing, or there are no pictures.
        """
        return video.play(self.config, self.agent, self.params, self.make_env, seed, max_steps)


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and has.

    Attributes:
      result: what it had learned by then.
    """

    def __init__(self, result: TrainResult) -> None:
        super().__init__()
        self.result = result


def train(
    config: Config,
    *,
    algorithm: Algorithm[Any] | None = None,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    params: Params | None = None,
    optimizer: optax.GradientTransformation | None = None,
    topology: Topology | None = None,
    listen: Listen | None = None,
    sinks: Sequence[Sink] = (),
    progress: bool = True,
) -> TrainResult:
    """Train an agent. Each part that is not given is made from ``config``.

    Ctrl-C, SIGTERM and SIGHUP end the run after the turn in progress: it saves a checkpoint, if
    there is a run directory, and raises ``Interrupted``, which holds the result so far. A second
    signal ends the process at once. (In an interactive session, Ctrl-C only raises.)

    Args:
      config: a preset, or a config of your own.
      algorithm: None takes the registered algorithm of the config's class.
      make_env: ``make_env(num_envs, seed)``, instead of ``config.env``. For the reference agent
        with an LSTM, the last action is added to its observations (``envs.PreviousAction``).
      agent: instead of the reference agent. It is checked once, as by ``sebulba.check_agent``.
      params: to start with, instead of the agent's ``init``, such as ``sebulba.load(run).params``.
        A run that is resumed goes on with those of its checkpoint.
      optimizer: instead of ``config.optimizer``; one that needs gradients and parameters alone, not
        the value of the loss as ``optax.contrib.reduce_on_plateau`` does.
      topology: instead of the placement of devices that ``config`` describes.
      listen: where env-hosts connect to, if ``config.remote_lanes``.
      sinks: where the rows of metrics go besides the run directory, such as ``LivePlot()``.
      progress: show progress on the terminal.

    Raises:
      ConfigError: the config cannot work, and nothing was written; or an environment, an agent or a
        loss of the user's own breaks a rule, which may be found at any step.
      Interrupted: the run was asked to stop.
      KeyboardInterrupt: it was, before it began.
      StallError: nothing moved for ``config.stall_seconds``.
      HostError: another host failed.
      Exception: the first failure of any thread, with a note that says where it came from.
    """
    sinks = checked_sinks(sinks)
    check_given(algorithm, make_env, optimizer)
    memory.limit_heaps()
    cpu_threads.provide()
    algorithm = algorithm or algorithms.of(config)
    config, refused = _checked(config, own_env=make_env is not None)
    # Others may never come, or not as soon: so nothing waits for them without supervision.
    with supervised(Config() if refused else config) as supervision:
        now = supervision.watchdog.activities.learner
        now.set("making the parts of the run")
        # What can refuse the config comes before the run directory: nothing is written then.
        with distributed.refusing_together(lambda: now.set("starting", waits_for=OTHERS)):
            if refused is not None:
                raise refused
            topology, note = _place(algorithm, config, topology)
            parts = _make_parts(
                algorithm, config, topology, make_env, agent, params, optimizer, listen
            )
            notes = [note for note in (note, parts.learner.prepare()) if note]
        distributed.agree(config, algorithm.name, topology.layout, _digest(params))
        run, rows = _run(parts, algorithm.name, sinks, progress, notes, supervision)
    result = TrainResult(run.local_params(), rows, parts.agent, parts.make_env, config, run.updates)
    if run.interrupted():
        raise Interrupted(result)
    return result


def _run(
    parts: Parts,
    algorithm: str,
    sinks: Sequence[Sink],
    progress: bool,
    notes: list[str],
    supervision: Supervision,
) -> tuple[SebulbaRun, list[Row]]:
    """A run from its parts, and its rows, when it has ended.

    ``notes`` are shown once the display is open.
    """
    config, now = parts.config, supervision.watchdog.activities.learner
    title = f"{config.preset or algorithm} · {config.env} · {parts.topology}"
    with RunDirectory(config, algorithm) as directory:
        now.set("making the parameters")
        fresh = parts.learner.init(jax.random.key(config.seed))
        now.set("reading the checkpoint", waits_for=OTHERS, files=True)
        start = directory.restore(fresh, parts.learner.params(fresh))
        shown = progress and distributed.is_primary()
        with (
            Progress(config.total_steps, title, enabled=shown) as display,
            Rows(directory, display, sinks) as rows,
        ):
            run = SebulbaRun(parts, directory, rows, start, supervision)
            run.run([*notes, *directory.notes])
    return run, rows.kept()


def _place(
    algorithm: Algorithm[Any], config: Config, topology: Topology | None
) -> tuple[Topology, str | None]:
    """The devices to use, and a line about them if there is something to say."""
    note = None
    if topology is None:
        topology, note = placement.choose(config, lambda n: algorithm.fits(config, n))
    _check_division(algorithm, config, topology)
    return topology, note


def _checked(config: Config, own_env: bool) -> tuple[Config, ConfigError | None]:
    """The config as it is used, and why it cannot be, if so."""
    try:
        config.validate()
    except ConfigError as error:
        return config, error
    if own_env:
        # What the saved config then says, so that evaluation asks for ``make_env`` again.
        config = dataclasses.replace(config, env=environments.OWN_ENV)
    if config.out is not None:  # Users may pass a string from Python.
        config = dataclasses.replace(config, out=Path(config.out).expanduser())
    return config, None


def _make_parts(
    algorithm: Algorithm[Any],
    config: Config,
    topology: Topology,
    make_env: MakeEnv | None,
    agent: Agent | None,
    params: Params | None,
    optimizer: optax.GradientTransformation | None,
    listen: Listen | None,
) -> Parts:
    """The parts of a run; those that are None are made from ``config``."""
    local_actors = config.actors_per_device * len(topology.inference)
    bare = make_env or environments.bare_make_env(config, local_actors)
    make_env = environments.with_last_action(config, bare, agent)
    spec = environments.probe(make_env)._replace(num_envs=config.envs_per_actor)
    evaluator = None
    if config.evaluation.interval:
        acts = agent or algorithm.make_agent(config, spec, "evaluating")
        evaluator = Evaluator(acts, make_env)
    remote_lanes = remote.make(config, listen, bare, local_actors, agent)
    agent = agent or algorithm.make_agent(config, spec, "training")
    check = make_check(agent, spec, algorithm.needs)
    optimizer = optimizer or make_optimizer(config.optimizer)
    learns = agent if params is None else _pretrained(agent, params)
    learner = algorithm.make_learner(config, learns, spec, optimizer, topology)
    _check_learner(learner)
    # Exploration is spread over the environments of all hosts, not repeated on each.
    num_actors = config.num_actors(len(topology.inference))
    num_envs = topology.num_hosts * num_actors * config.envs_per_actor
    return Parts(
        config=config,
        topology=topology,
        make_env=make_env,
        spec=spec,
        agent=agent,
        learner=learner,
        exploration=algorithm.make_exploration(config, num_envs),
        unrolls_per_turn=algorithm.unrolls_per_turn(config),
        evaluator=evaluator,
        remote=remote_lanes,
        check=check,
    )


def _pretrained(agent: Agent, params: Params) -> Pretrained:
    """The agent as the learner has it, which starts with ``params``."""
    given, fresh = _arrays(params), jax.eval_shape(agent.init, jax.random.key(0))
    if found := contents.differences_of_types(contents.types(given), contents.types(fresh)):
        raise ConfigError(
            f"params do not fit the agent: {found} (there in params, here in the agent). Train "
            "with the network, the observations and the actions that they were learned with."
        )
    # By name, since the nodes of the two trees may be of other classes, such as flax's dicts.
    leaves = contents.named(given)
    ordered = [leaves[name] for name in contents.named(fresh)]
    return Pretrained(agent, jax.tree.unflatten(jax.tree.structure(fresh), ordered))


def _digest(params: Params | None) -> str:
    """The same for equal ``params``; "" for none."""
    if params is None:
        return ""
    given = _arrays(params)
    return contents.digest(contents.describe(given, np.asarray(contents.checksums(given))))


def _arrays(params: Params) -> ArrayTree:
    # On no device: the learner's are not those of the run that they come from.
    return jax.tree.map(
        lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf), jax.device_get(params)
    )


def _check_division(algorithm: Algorithm[Any], config: Config, topology: Topology) -> None:
    """Refuse sizes that the learner devices do not divide; the message has sizes that they do."""
    learners = len(topology.learners)
    changes = changed_options(config, algorithm.fit(config, learners))
    if changes:
        if config.placement != "shared":
            changes += ", or --num-inference-devices so that the learners divide them"
        raise ConfigError(
            f"envs_per_actor {config.envs_per_actor} and batch_size {config.batch_size}, in "
            f"{config.num_microbatches or 1} microbatch(es), do not divide over the {learners} "
            f"learner devices of {topology.layout}: each takes an equal part, also of every "
            f"minibatch of PPO and PQN. Set {changes}; in Python, set the fields with these names."
        )


def changed_options(before: Config, after: Config) -> str:
    """The command-line options that turn ``before`` into ``after``; "" if they are the same."""
    return " ".join(
        f"--{field.name.replace('_', '-')} {getattr(after, field.name)}"
        for field in dataclasses.fields(after)
        if getattr(after, field.name) != getattr(before, field.name)
    )


def _check_learner(learner: object) -> None:
    if not isinstance(learner, Learner):
        raise ConfigError(
            f"the algorithm's make_learner returned a {type(learner).__name__}, which is not a "
            "sebulba.Learner: make it inherit from sebulba.Learner, whose other methods it needs."
        )
    is_of = type(learner).update in (TrajectoryLearner.update, EpochLearner.update)
    if is_of and not hasattr(learner, "synchronized"):
        raise ConfigError(
            f"{type(learner).__name__}.__init__ has not called that of its base class, which makes "
            "the update: begin it with super().__init__(...)."
        )
