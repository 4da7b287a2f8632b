"""The training run: actors, queue, learner, and what is written about them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from sebulba import algorithms, distributed, envs
from sebulba.checkpoint import Counts
from sebulba.config import Config, ConfigError, validate
from sebulba.display import Progress
from sebulba.inference import Actor, ActorProgram, ParamsSlot, Unroll
from sebulba.learners import Delivery, Learner, TurnCount, count_turn, make_optimiser
from sebulba.meter import Meter, Row
from sebulba.queues import ShutDown, TrajectoryQueue
from sebulba.rundir import RunDirectory
from sebulba.schedule import Schedule
from sebulba.threads import POLL_SECONDS, Interrupt, ThreadGroup, wait_until_ready
from sebulba.topology import Topology
from sebulba.types import Agent, ArrayTree, Env, EnvSpec, Params

MakeEnv = Callable[[int, int], Env]
"""``make_env(num_envs, seed)``: the environments of one actor."""
MakeLearner = Callable[[Agent, EnvSpec, optax.GradientTransformation, Topology], Learner]


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training leaves.

    Attributes:
      params: the last parameters, on the first learner device.
      metrics: the rows of ``metrics.jsonl`` that this call produced.
      agent: acts with ``params``.
      config: what was run.
      updates: updates done, those of a resumed run included.
    """

    params: Params
    metrics: list[Row]
    agent: Agent
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

    Ctrl-C and SIGTERM save a checkpoint, where there is a run directory, and then raise
    ``KeyboardInterrupt``.

    Args:
      config: a preset, or one made by hand.
      make_env: ``make_env(num_envs, seed)``, in place of ``config.env``.
      agent: in place of the reference agent.
      optimiser: in place of ``config.optimiser``.
      make_learner: in place of the learner of ``config``'s algorithm.
      topology: in place of ``Topology.split(config.num_inference)``.
      progress: show progress on the terminal.

    Raises:
      ConfigError: the config cannot work; nothing was written.
      Exception: the first failure of any thread, with a note of where it came from.
    """
    validate(config)
    topology = topology or Topology.split(config.num_inference, batch=config.envs_per_actor)
    _check_division(config, topology)
    make_env = make_env or default_make_env(config)
    spec = probe(make_env)
    agent = agent or algorithms.make_agent(config, spec)
    optimiser = optimiser or make_optimiser(config.optimiser, _num_updates(config, topology))
    if make_learner is None:
        learner = algorithms.make_learner(config, agent, spec, optimiser, topology)
    else:
        learner = make_learner(agent, spec, optimiser, topology)
    distributed.agree(config)
    with RunDirectory.open(config) as directory:
        run = _Run(config, topology, make_env, spec, agent, learner, directory)
        title = f"{config.preset or type(config).__name__} · {config.env} · {topology}"
        with Progress(
            config.total_steps, title, enabled=progress and distributed.is_lead()
        ) as display:
            with distributed.naming_the_host():
                run.go(display)
    return TrainResult(run.local_params(), run.rows, agent, config, run.updates)


def default_make_env(config: Config) -> MakeEnv:
    """The environments that ``config`` names; with the last action for recurrent networks."""

    def make_env(num_envs: int, seed: int) -> Env:
        try:
            env = envs.make(
                config.env,
                num_envs,
                seed=seed,
                num_threads=config.env_threads,
                options=config.env_options,
                atari_protocol=config.atari_protocol,
            )
        except (TypeError, RuntimeError) as error:
            raise ConfigError(
                f"{config.env} cannot be made with env_options {config.env_options} ({error}): "
                "each must have the type that the environment wants. Set them with --env-options."
            ) from error
        return envs.PreviousAction(env) if config.network.core == "lstm" else env

    return make_env


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


class _Run:
    """One run; ``go`` is the learner's thread, which is the caller's."""

    def __init__(
        self,
        config: Config,
        topology: Topology,
        make_env: MakeEnv,
        spec: EnvSpec,
        agent: Agent,
        learner: Learner,
        directory: RunDirectory,
    ) -> None:
        self._config = config
        self._topology = topology
        self._make_env = make_env
        self._spec = spec._replace(num_envs=config.envs_per_actor)
        self._agent = agent
        self._learner = learner
        self._checkpoints = directory.checkpoints
        self._metrics = directory.metrics
        self.rows: list[Row] = []
        self._directory = directory
        self._notes = [learner.describe()]
        self._state = learner.init(jax.random.key(config.seed))
        self.updates = 0
        self._turn = 0
        counts: Counts = {}
        if config.resume:
            self.updates, self._state, counts = directory.restore(self._state)
            self._turn = int(counts["turn"])
            self._notes.append(learner.load_memory(directory.memory(self.updates)))
        self._logged_turn = self._turn
        lanes = len(topology.inference) * config.actors_per_device
        self._schedule = Schedule(
            lanes, config.batch_size // config.envs_per_actor, self._turn, config.policy_lag
        )
        self._exploration = algorithms.make_exploration(
            config, topology.num_hosts * lanes * config.envs_per_actor
        )
        self._meter = Meter(
            spec.frame_skip,
            lanes,
            distributed.gather,
            steps=int(counts.get("steps", 0)),
            episodes=int(counts.get("episodes", 0)),
            seconds=counts.get("seconds", 0.0),
        )
        self._queue: TrajectoryQueue[Unroll] = TrajectoryQueue(lanes, config.queue_size)
        self._slots = [ParamsSlot(device) for device in topology.inference]
        self._interrupt = Interrupt()
        self._stop = False
        self._pending: deque[tuple[Callable[[Any], None], Any]] = deque()

    def go(self, display: Progress) -> None:
        """Train to the end, or to the first failure or interrupt."""
        group = ThreadGroup()
        group.on_stop(self._queue.shutdown)
        for slot in self._slots:
            group.on_stop(slot.shutdown)
        with self._interrupt.listen():
            try:
                for note in filter(None, self._notes):
                    display.message(note)
                self._publish()
                self._start_actors(group)
                with contextlib.suppress(ShutDown):
                    self._learn(display)
            except Exception as error:
                error.add_note(f"in the learner, update {self.updates}")
                raise
            finally:
                group.close()
            self._finish(display)
        if self._stop or self._interrupt.signal is not None:
            raise KeyboardInterrupt

    def local_params(self) -> Params:
        """The parameters on the first learner device of this host."""
        return jax.tree.map(
            lambda leaf: leaf.addressable_data(0), self._learner.params(self._state)
        )

    def _learn(self, display: Progress) -> None:
        config = self._config
        while self._meter.steps < config.total_steps and not self._stop:
            with self._meter.timed("queue_wait"):
                deliveries = self._take()
            with self._meter.timed("update"):
                self._update(deliveries)
            self._turn += 1
            with self._meter.timed("publish"):
                self._publish()
            saves_now = self._turn % config.checkpoint.every == 0
            # A checkpoint's counts are those of the last row.
            if saves_now or self._turn % config.log_every == 0:
                self._collect(under_way=0)
                self._log(display)
            if saves_now:
                self._save()
            if self._checkpoints is not None:
                self._checkpoints.check()

    def _update(self, deliveries: list[Delivery]) -> None:
        """This turn's updates, in step with the other hosts.

        Results of the last update arrive while the next one runs: at most two are under way.
        """
        interrupted = self._interrupt.signal is not None
        count = count_turn(deliveries, interrupted, self._topology)
        self._pending.append((self._count_turn, count))
        for _ in range(self._learner.add(deliveries)):
            self._state, logs = self._learner.update(self._state)
            self.updates += 1
            self._pending.append((self._meter.add_logs, logs))
            self._collect(under_way=1)
        self._collect(under_way=1)

    def _count_turn(self, count: TurnCount) -> None:
        self._meter.add_steps(count.steps)
        self._stop = self._stop or bool(count.interrupts)

    def _finish(self, display: Progress) -> None:
        self._collect(under_way=0)
        if self._turn > self._logged_turn:
            self._log(display)
        self._save()
        self._learner.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    def _take(self) -> list[Delivery]:
        lanes = self._schedule.lanes_of(self._turn)
        unrolls = [self._take_from(lane) for lane in lanes]
        self._meter.add_unrolls(unrolls, self._turn)
        return [Delivery(lane, unroll.parts) for lane, unroll in zip(lanes, unrolls, strict=True)]

    def _take_from(self, lane: int) -> Unroll:
        while True:
            try:
                return self._queue.get(lane, POLL_SECONDS)
            except TimeoutError:
                self._poll()

    def _collect(self, under_way: int) -> None:
        """Wait for results of the devices, oldest first, until only so many are to come.

        One stays under way, so that the devices work on it meanwhile; which ones have come in is
        a matter of counting, so all hosts see the same number of steps at the same turn.
        """
        while len(self._pending) > under_way:
            take_in, arrays = self._pending[0]
            if under_way:
                wait_until_ready(arrays, self._poll)
            self._pending.popleft()
            take_in(jax.device_get(arrays))

    def _poll(self) -> None:
        # With several hosts, all must see the interrupt at the same turn (``_count_turn``).
        alone = self._topology.num_hosts == 1
        if self._queue.is_down() or (alone and self._interrupt.signal is not None):
            raise ShutDown

    def _publish(self) -> None:
        params = self.local_params()
        for slot in self._slots:
            slot.publish(self._turn, params)

    def _log(self, display: Progress) -> None:
        row = self._meter.row(self.updates) | self._learner.metrics() | self._epsilons()
        self.rows.append(row)
        self._logged_turn = self._turn
        if self._metrics is not None:
            self._metrics.write(row)
        display.update(row)

    def _epsilons(self) -> Row:
        if self._exploration is None:
            return {}
        epsilons = self._exploration.epsilons
        return {"epsilon_min": float(epsilons.min()), "epsilon_max": float(epsilons.max())}

    def _save(self) -> None:
        if self._checkpoints is not None:
            counts = {"turn": self._turn, **self._meter.count()}
            params = self._learner.params(self._state)
            self._checkpoints.save(self.updates, self._state, params, counts)
            self._learner.save_memory(self._directory.memory(self.updates))

    def _start_actors(self, group: ThreadGroup) -> None:
        config = self._config
        program = ActorProgram(
            self._agent,
            self._spec,
            config.unroll_length,
            len(self._topology.learners),
            self._exploration and self._exploration.explore,
        )
        lane = 0
        for slot, device in zip(self._slots, self._topology.inference, strict=True):
            program.warm_up(slot.newest().params, self._epsilons_of(0), device)
            for _ in range(config.actors_per_device):
                group.start(f"actor-{lane}", self._actor(lane, program, slot, device).run)
                lane += 1

    def _actor(
        self, lane: int, program: ActorProgram, slot: ParamsSlot, device: jax.Device
    ) -> Actor:
        config, schedule = self._config, self._schedule
        number = jax.process_index() * schedule.lanes + lane
        seeds = np.random.SeedSequence([config.seed, number, schedule.first_unroll(lane)])
        env_seed = int(seeds.generate_state(1)[0] >> 1)
        return Actor(
            name=f"actor-{lane}",
            lane=lane,
            make_env=lambda: self._make_env(config.envs_per_actor, env_seed),
            program=program,
            slot=slot,
            queue=self._queue,
            device=device,
            learners=self._topology.learners,
            key=jax.random.fold_in(jax.random.key(config.seed), number + 1),
            first_unroll=schedule.first_unroll(lane),
            version_of=lambda unroll: schedule.version_of(lane, unroll),
            unroll_length=config.unroll_length,
            exploration=self._epsilons_of(number),
        )

    def _epsilons_of(self, number: int) -> ArrayTree:
        if self._exploration is None:
            return ()
        return self._exploration.of_actor(number, self._config.envs_per_actor)


def _num_updates(config: Config, topology: Topology) -> int:
    steps = config.unroll_length * config.batch_size * topology.num_hosts
    return -(-config.total_steps // steps)


def _check_division(config: Config, topology: Topology) -> None:
    learners = len(topology.learners)
    if config.envs_per_actor % learners:
        raise ConfigError(
            f"envs_per_actor {config.envs_per_actor} is not a multiple of the {learners} learner "
            f"devices of {topology.layout}: each takes an equal part of every trajectory. Make it "
            f"{-(-config.envs_per_actor // learners) * learners}, or choose --num-inference so "
            "that the learners divide it."
        )
    per_device = config.batch_size // learners
    if per_device % config.gradient_accumulation:
        raise ConfigError(
            f"gradient_accumulation {config.gradient_accumulation} does not divide the "
            f"{per_device} trajectories of each learner device (batch_size {config.batch_size} "
            f"over {learners} learners): choose one of its divisors."
        )
