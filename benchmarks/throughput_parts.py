"""What throughput.py measures: the parts of training, each of them alone, and training itself.

A part is a dict from the name of a setting to a ``Measure``: a function that measures for so many
seconds. Everything is made and compiled before the first measurement.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from throughput_envs import Recorded, pool_settings, record, stepping

import sebulba
from sebulba import algorithms, envs
from sebulba.algorithms import Algorithm
from sebulba.config import Config
from sebulba.devices import placement
from sebulba.devices.topology import Topology
from sebulba.inference import ActorProgram
from sebulba.learners import make_optimizer
from sebulba.runners.environments import default_make_env
from sebulba.runtime.schedule import Schedule
from sebulba.types import (
    Agent,
    ArrayTree,
    EnvSpec,
    MakeEnv,
    Params,
    Timestep,
    Trajectory,
    Unroll,
)

Measurement = dict[str, Any]
Measure = Callable[[float], Measurement]
Part = dict[str, Measure]
Work = Callable[[], tuple[float, ArrayTree]]
"""Some work: the agent steps that it stands for, and arrays that it may still be computing."""

ROWS = 2
"""Of metrics in one measurement of training, at most: each of them waits for the devices."""
TRIAL_SECONDS = 1.0
"""Of training, to see how long a turn takes."""
NEVER = 2**31


class Setup(NamedTuple):
    """What all parts share.

    Attributes:
      config: of the training; never written to disk, and learning as soon as it can.
      algorithm: the config's.
      topology: the devices that act and learn.
      spec: of one actor's environments.
      agent: the preset's.
      optimizer: the preset's.
      params: fresh ones, on the first learner device.
      timesteps: recorded ones ``[B, ...]`` of one actor's environments.
    """

    config: Config
    algorithm: Algorithm[Any]
    topology: Topology
    spec: EnvSpec
    agent: Agent
    optimizer: optax.GradientTransformation
    params: Params
    timesteps: list[Timestep]

    @property
    def schedule(self) -> Schedule:
        """The order in which the learner takes unrolls."""
        lanes = len(self.topology.inference) * self.config.actors_per_device
        return Schedule(lanes, self.algorithm.unrolls_per_turn(self.config), 0, "any")

    @property
    def steps_per_turn(self) -> int:
        """Agent steps that the learner takes in one turn."""
        return self.schedule.per_turn * self.config.envs_per_actor * self.config.unroll_length


def prepare(config: Config) -> Setup:
    """Record some environments, and make what the parts share."""
    config.validate()
    algorithm = algorithms.of(config)
    endless = dataclasses.replace(config.checkpoint, interval=NEVER)  # A checkpoint makes a row.
    config = dataclasses.replace(config, out=None, resume=False, checkpoint=endless)
    topology, _ = placement.choose(config, lambda n: algorithm.fits(config, n))
    optimizer = make_optimizer(config.optimizer)
    config = algorithm.for_trial(config)
    spec, timesteps = record(default_make_env(config), config)
    agent = algorithm.make_agent(config, spec, "training")
    params = jax.jit(agent.init)(jax.device_put(jax.random.key(0), topology.learners[0]))
    return Setup(config, algorithm, topology, spec, agent, optimizer, params, timesteps)


def parts(setup: Setup, names: Sequence[str]) -> dict[str, Part]:
    """The parts called ``names``, by name."""
    recorded = Recorded(setup.spec, setup.timesteps)
    make: dict[str, Callable[[], Part]] = {
        "a": lambda: environments(setup),
        "b": lambda: acts(setup),
        "c": lambda: {"as in training": update_measure(setup)},
        "d": lambda: transfers(setup),
        "e": lambda: {"as in training": Training(setup, lambda *_: recorded.copy())},
        "f": lambda: {"as in training": training(setup)},
    }
    # Training first: it has the better messages for a config that cannot work.
    return {name: make[name]() for name in sorted(names, reverse=True)}


def rate(works: Sequence[Work], seconds: float) -> float:
    """Agent steps/s of ``works`` together, each done again and again in a thread of its own."""
    with ThreadPoolExecutor(len(works)) as pool:
        return sum(pool.map(lambda work: _rate(work, seconds), works))


def _rate(work: Work, seconds: float) -> float:
    steps, pending = 0.0, ()
    start = time.perf_counter()
    while not steps or time.perf_counter() - start < seconds:
        done, arrays = work()
        # As in training: one result is under way while the next one is dispatched.
        jax.block_until_ready(pending)
        steps, pending = steps + done, arrays
    jax.block_until_ready(pending)
    return steps / (time.perf_counter() - start)


# (a) Environments.


def environments(setup: Setup) -> Part:
    """Environments with random actions: as in training, and other pools and threads.

    Several pools at once do what EnvPool's asynchronous mode is for: while one waits for its
    slowest environment, the cores step those of another.
    """
    return {
        f"{pools} x {size} environments, threads: {threads or 'none'}": pool_measure(
            setup.config, pools, size, threads
        )
        for pools, size, threads in sorted(pool_settings(setup.config, setup.schedule.lanes))
    }


def pool_measure(config: Config, pools: int, num_envs: int, threads: int) -> Measure:
    """``pools`` batches of ``num_envs`` environments, each stepped by a thread of its own."""
    made = [
        envs.make(
            config.env,
            num_envs,
            seed=seed,
            num_threads=threads,
            options=config.env_options,
            atari_protocol=config.atari_protocol,
        )
        for seed in range(pools)
    ]
    works = [stepping(env) for env in made]
    rate(works, 0.0)
    return lambda seconds: {"steps_per_second": rate(works, seconds)}


# (b) Acting.


def acts(setup: Setup) -> Part:
    """The actors' own program at several batch sizes, with one actor a device and with all."""
    config, learners = setup.config, len(setup.topology.learners)
    size = config.envs_per_actor
    half = size // 2 // learners * learners or size
    settings = {(1, num_envs) for num_envs in (half, size, 2 * size, 4 * size)}
    settings |= {(config.actors_per_device, size)}
    return {
        f"{actors} x {num_envs} environments": act_measure(setup, actors, num_envs)
        for actors, num_envs in sorted(settings)
    }


def act_measure(setup: Setup, actors: int, num_envs: int) -> Measure:
    """``actors`` threads for each inference device, each acting for ``num_envs`` environments."""
    program = Acting(setup, num_envs)
    works = [program.work(device) for device in setup.topology.inference for _ in range(actors)]
    rate(works, 0.0)
    return lambda seconds: {"steps_per_second": rate(works, seconds), "num_envs": num_envs}


class Acting:
    """What an actor of ``num_envs`` environments does on its device, but for the environments."""

    def __init__(self, setup: Setup, num_envs: int) -> None:
        config = setup.config
        exploration = setup.algorithm.make_exploration(config, num_envs)
        self._epsilons = () if exploration is None else exploration.epsilons(0.0)
        self._program = ActorProgram(
            setup.agent,
            setup.spec._replace(num_envs=num_envs),
            config.unroll_length,
            setup.topology.learners,
            exploration and exploration.explore,
        )
        self._params = setup.params
        chosen = np.arange(num_envs) % setup.spec.num_envs
        self._timesteps = [
            jax.tree.map(lambda leaf: leaf[chosen], timestep)
            for timestep in setup.timesteps[: config.unroll_length]
        ]
        self._steps = float(num_envs * len(self._timesteps))

    def work(self, device: jax.Device) -> Work:
        """One unroll on recorded timesteps that are on ``device`` already; gives its shards."""
        params, epsilons, timesteps, key, number = jax.device_put(
            (self._params, self._epsilons, self._timesteps, jax.random.key(0), np.int32(0)), device
        )
        carry = self._program.start(params, key, number)

        def work() -> tuple[float, ArrayTree]:
            nonlocal carry
            for timestep in timesteps:
                action, carry = self._program.step(params, carry, timestep, epsilons)
                jax.device_get(action)
            unroll, carry = self._program.finish(carry, timesteps[0])
            return self._steps, unroll

        work()  # Compiles, before several threads would each do it at once.
        return work


# (c) Updates.


def update_measure(setup: Setup) -> Measure:
    """The preset's learner, again and again on one batch, or on batches from a filled replay."""
    config = setup.config
    learner = setup.algorithm.make_learner(
        config, setup.agent, setup.spec, setup.optimizer, setup.topology
    )
    learner.prepare()
    state = learner.init(jax.random.key(config.seed))
    unroll = one_unroll(setup)
    for turn in itertools.count():
        if learner.add([Unroll(lane, unroll) for lane in setup.schedule.lanes_of(turn)]):
            break
    steps = float(setup.algorithm.steps_per_update(config))

    def work() -> tuple[float, ArrayTree]:
        nonlocal state
        state, logs = learner.update(state, progress=0.0)
        return steps, logs

    def measure(seconds: float) -> Measurement:
        found = rate([work], seconds)
        return {"steps_per_second": found, "updates_per_second": found / steps}

    measure(0.0)
    return measure


def one_unroll(setup: Setup) -> list[Trajectory]:
    """Of recorded timesteps, cut along B, one shard on each learner device."""
    topology = setup.topology
    _, unroll = Acting(setup, setup.spec.num_envs).work(topology.inference[0])()
    return list(map(jax.device_put, unroll, topology.learners))


# (d) Transfers.


def transfers(setup: Setup) -> Part:
    """What crosses the bus: each step, each unroll (where devices differ) and each turn."""
    config, topology = setup.config, setup.topology
    acting, learning = topology.inference[0], topology.learners[0]
    made = {
        "observations, host to device": transfer(setup.timesteps[0], acting, config.envs_per_actor),
        "parameters, learner to inference device": transfer(
            setup.params, acting, setup.steps_per_turn
        ),
    }
    if acting != learning:
        unroll = jax.device_put(one_unroll(setup), acting)
        steps = config.envs_per_actor * config.unroll_length
        made["unroll, inference to learner device"] = transfer(unroll, learning, steps)
    return made


def transfer(arrays: ArrayTree, device: jax.Device, steps: int) -> Measure:
    """Copies of ``arrays``, needed once for so many agent steps, to ``device``."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    # Observations may be aliased, where that saves a copy; parameters and unrolls never are.
    aliased = None if isinstance(jax.tree.leaves(arrays)[0], np.ndarray) else False

    def work() -> tuple[float, ArrayTree]:
        return float(steps), jax.device_put(arrays, device, may_alias=aliased)

    def measure(seconds: float) -> Measurement:
        found = rate([work], seconds)
        return {
            "steps_per_second": found,
            "bytes_per_second": found / steps * size,
            "bytes_per_step": size / steps,
        }

    measure(0.0)
    return measure


# (e) and (f) Training.


class Training:
    """``sebulba.train``, measured between two rows of its metrics.

    The first turns are left out: those that compile and fill the replay, and those that take what
    the actors had ready by then. A window is a multiple of the turns that take from every lane
    equally often, so that it does not depend on which actor came first.
    """

    def __init__(self, setup: Setup, make_env: MakeEnv) -> None:
        """Train briefly: to compile, and to see how long a turn takes."""
        self._setup = setup
        self._make_env = make_env
        schedule = setup.schedule
        self._round = schedule.lanes // math.gcd(schedule.lanes, schedule.per_turn)
        self._first_turns = _first_turns(setup)
        self._turns_per_second = 0.0
        self(0.0)
        if self._turns_per_second > self._round:  # Too short to tell.
            self(TRIAL_SECONDS)

    def __call__(self, seconds: float) -> Measurement:
        """Measure for about ``seconds``, and at least a round of the lanes."""
        rounds = math.ceil(self._turns_per_second * seconds / self._round) or 1
        rows = min(ROWS, rounds)
        every = math.ceil(rounds / rows) * self._round
        warm = math.ceil(self._first_turns / every)
        metrics = self._train(every, (warm + rows) * every)
        start, window = metrics[warm - 1], metrics[warm : warm + rows]
        elapsed = window[-1]["seconds"] - start["seconds"]
        steps = window[-1]["steps"] - start["steps"]
        self._turns_per_second = rows * every / elapsed
        return {
            "steps_per_second": steps / elapsed,
            "updates_per_second": (window[-1]["update"] - start["update"]) / elapsed,
            # The others are auto-reset ones.
            "share_of_counted_steps": steps / (rows * every * self._setup.steps_per_turn),
            "seconds": elapsed,
            "policy_lag": float(np.mean([row["policy_lag_mean"] for row in window])),
            "shares": {
                name.removesuffix("_seconds"): sum(row[name] for row in window) / elapsed
                for name in start
                if name.startswith(("actor_", "learner_")) and name.endswith("_seconds")
            },
        }

    def _train(self, every: int, turns: int) -> list[dict[str, Any]]:
        setup = self._setup
        # Every turn counts at most these steps, so there are at least so many turns.
        steps = turns * setup.steps_per_turn
        result = sebulba.train(
            dataclasses.replace(setup.config, total_steps=steps, log_every=every),
            make_env=self._make_env,
            agent=setup.agent,
            optimizer=setup.optimizer,
            topology=setup.topology,
            progress=False,
        )
        return [dict(row) for row in result.metrics]


def training(setup: Setup) -> Training:
    """With the environments of the config, whose actors share the cores."""
    return Training(setup, default_make_env(setup.config, setup.schedule.lanes))


def _first_turns(setup: Setup) -> int:
    """Turns until training runs as it will: the replay is filled and the backlog is gone."""
    config, schedule = setup.config, setup.schedule
    # Each lane holds its queue and the unroll that waits for a place, and the learner two updates.
    turns = math.ceil(schedule.lanes * (config.queue_size + 1) / schedule.per_turn) + 2
    steps = setup.algorithm.steps_before_learning(config, schedule.lanes)
    # And until an update has been made on all that came by then.
    steps += math.ceil(setup.algorithm.steps_per_update(config))
    return turns + math.ceil(steps / setup.steps_per_turn)
