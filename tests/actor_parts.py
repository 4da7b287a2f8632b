"""An actor in its thread, and an environment in which every number says where it belongs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sebulba import Topology
from sebulba.inference import Actor, ActorProgram, ParamsSlot
from sebulba.learners import concatenate
from sebulba.runtime.queues import TrajectoryQueue
from sebulba.runtime.schedule import Schedule
from sebulba.runtime.threads import ThreadGroup
from sebulba.types import (
    ActorOutput,
    ArraySpec,
    DiscreteSpec,
    EnvSpec,
    Timestep,
    Trajectory,
    Unroll,
)

B, T = 4, 5


class Scripted:
    """Environment e plays episodes of e + 2 steps; even ones terminate and odd ones truncate.

    It observes (env, t, episode, reward, discount) and rewards an action by its own number.
    """

    def __init__(self, num_envs: int = B) -> None:
        self.spec = EnvSpec(
            ArraySpec((5,), np.dtype(np.float32)), DiscreteSpec(1_000_000), num_envs
        )
        self.env = np.arange(num_envs)
        self.t = np.zeros(num_envs, int)
        self.episode = np.zeros(num_envs, int)
        self.actions: list[np.ndarray[Any, Any]] = []
        self.closed = False

    def reset(self) -> Timestep:
        return self._timestep(np.zeros(len(self.env)))

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self.actions.append(action.copy())
        over = self.t == self.env + 2
        self.episode = self.episode + over
        self.t = np.where(over, 0, self.t + 1)
        return self._timestep(np.where(over, 0, action))

    def close(self) -> None:
        self.closed = True

    def _timestep(self, reward: np.ndarray[Any, Any]) -> Timestep:
        terminated = (self.t == self.env + 2) & (self.env % 2 == 0)
        discount = np.where(terminated, 0, 1)
        seen = np.stack([self.env, self.t, self.episode, reward, discount], axis=-1)
        return Timestep(
            seen.astype(np.float32),
            reward.astype(np.float32),
            discount.astype(np.float32),
            self.t == 0,
        )


class Seen(NamedTuple):
    version: Any
    steps: Any
    noise: Any


def code(observation: Any) -> Any:
    """The action of ``Telltale``: env, t and episode in one number that float32 holds."""
    env, t, episode = (observation[..., i] for i in range(3))
    return 10_000 * env + 1_000 * t + episode


class Telltale:
    """Its action says what it saw; its extras say its version, its state and its random number."""

    def init(self, key: jax.Array) -> Any:
        return {"version": jnp.float32(0)}

    def initial_state(self, batch_size: int) -> Any:
        return jnp.zeros(batch_size, jnp.int32)

    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        action = code(timestep.observation).astype(jnp.int32)
        noise = jax.random.uniform(key, action.shape)
        extras = Seen(jnp.broadcast_to(params["version"], action.shape), state, noise)
        return ActorOutput(action, extras), state + 1

    def unroll(self, params: Any, timesteps: Timestep, state: Any) -> Any:
        raise NotImplementedError


@contextmanager
def no_implicit_transfers() -> Iterator[None]:
    """In every thread, unlike the context manager of jax."""
    jax.config.update("jax_transfer_guard", "disallow")
    try:
        yield
    finally:
        jax.config.update("jax_transfer_guard", "allow")


class Rig:
    """One actor in its thread, with a slot and a queue of one place."""

    def __init__(
        self,
        *,
        agent: Any = None,
        env: Any = None,
        devices: int = 1,
        params: Any = None,
        key: int = 0,
        schedule: Schedule | None = None,
        program: ActorProgram | None = None,
    ) -> None:
        self.topology = Topology.split(1, jax.devices()[:devices])
        self.env = env or Scripted()
        self.device = self.topology.inference[0]
        self.slot = ParamsSlot(self.device)
        self.publish(0, params)
        self.queue: TrajectoryQueue[Unroll] = TrajectoryQueue(1, 1)
        self.program = program or make_program(
            agent or Telltale(), self.env.spec, self.topology.learners
        )
        self.program.warm_up(self.slot.newest().params, (), self.device)
        self.actor = Actor(
            lane=0,
            make_env=lambda: self.env,
            program=self.program,
            slot=self.slot,
            queue=self.queue,
            schedule=schedule or in_turn(),
            key=jax.random.key(key),
        )

    def publish(self, version: int, params: Any = None) -> None:
        params = params or {"version": jax.device_put(np.float32(version))}
        self.slot.publish(version, params, version / 10)

    @contextmanager
    def running(self) -> Iterator[Callable[[], Unroll]]:
        group = ThreadGroup(10)
        group.on_stop(self.queue.shutdown)
        group.on_stop(self.slot.shutdown)
        with no_implicit_transfers():
            group.start("actor-0", self.actor.run)
            try:
                yield lambda: self.queue.get(0, timeout=30)
            finally:
                group.close()

    def collect(self, count: int) -> list[Unroll]:
        with self.running() as get:
            return [get() for _ in range(count)]


def make_program(agent: Any, spec: EnvSpec, learners: Sequence[jax.Device] = ()) -> ActorProgram:
    return ActorProgram(agent, spec, T, learners or jax.devices()[:1])


@functools.cache
def telltale() -> ActorProgram:
    return make_program(Telltale(), Scripted().spec)


def in_turn(first: int = 0) -> Schedule:
    """Every unroll of the one actor is a turn, from number ``first`` on."""
    return Schedule(lanes=1, per_turn=1, first_turn=first, lag="any")


def whole(unroll: Unroll) -> Trajectory:
    """The unroll's trajectory on the host."""
    return concatenate(jax.device_get(unroll.shards))
