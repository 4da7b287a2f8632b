"""What the tests of remote lanes share: a trainer's side without JAX, and env-hosts in threads."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sebulba import envs
from sebulba.remote.compression import Name
from sebulba.remote.env_host import EnvHost
from sebulba.remote.handshake import facts
from sebulba.remote.listener import Listener
from sebulba.remote.security import Security
from sebulba.types import ArraySpec, DiscreteSpec, Env, EnvSpec, MakeEnv, Timestep

CATCH = envs.Catch(4, 0).spec
OPEN = Security()
STAY = np.ones(4, np.int32)
"""Actions for four environments."""
LENGTH = 7
"""Steps of an episode of ``Numbered``."""


class Numbered:
    """Observes its seed, which differs from life to life, and the number of its step.

    The next number is wrong unless every action was that number modulo 3.
    """

    def __init__(self, num_envs: int, seed: int) -> None:
        self._seed, self._step, self._num_envs = seed, 0, num_envs
        self.spec = EnvSpec(ArraySpec((2,), np.dtype(np.int32)), DiscreteSpec(3), num_envs)

    def reset(self) -> Timestep:
        return self._timestep()

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self._step += 1
        return self._timestep()

    def close(self) -> None:
        pass

    def _timestep(self) -> Timestep:
        observation = np.tile(np.array([self._seed, self._step], np.int32), (self._num_envs, 1))
        first = np.full(self._num_envs, self._step % (LENGTH + 1) == 0)
        ones = np.ones(self._num_envs, np.float32)
        return Timestep(observation, 0 * ones, ones, first)


class Slow(envs.Catch):
    """Catch that takes its time in steps after the first ``fast`` ones, or until ``released``."""

    def __init__(self, num_envs: int, seed: int, seconds: float = 60.0, fast: int = 0) -> None:
        super().__init__(num_envs, seed)
        self.released = threading.Event()
        self.is_slow = False
        self._seconds, self._fast = seconds, fast

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        self._fast -= 1
        self.is_slow = self._fast < 0
        if self.is_slow:
            self.released.wait(self._seconds)
        return super().step(action)


def until(holds: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait until it does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def env_of(listener: Listener, lane: int = 0, seed: int = 3) -> Env:
    """The environments of a lane, as its actor has them."""
    return listener.make_env(lane)(4, seed)


@contextlib.contextmanager
def trainer(
    lanes: int = 1,
    *,
    env: str = "sebulba/Catch",
    spec: EnvSpec = CATCH,
    security: Security = OPEN,
    step_seconds: float = 5.0,
    ends_run: bool = False,
    port: int = 0,
) -> Iterator[tuple[Listener, str]]:
    """A listener of ``lanes`` lanes, and its address."""
    listener = Listener(
        f"127.0.0.1:{port}",
        security,
        facts(env, {}, "machado", spec),
        spec,
        range(lanes),
        step_seconds=step_seconds,
        ends_run=ends_run,
    )
    port = listener.open()
    try:
        yield listener, f"localhost:{port}"
    finally:
        listener.close(is_complete=False)


class HostThread:
    """An env-host in a thread.

    Attributes:
      said: the lines that it has printed.
      error: what it has failed with; None while it runs.
    """

    def __init__(
        self,
        address: str,
        make_env: MakeEnv = envs.Catch,
        spec: EnvSpec = CATCH,
        env: str = "sebulba/Catch",
        security: Security = OPEN,
        patience_seconds: float = 0.0,
        lanes: int = 1,
        compression: Name = "none",
        **changed: Any,
    ) -> None:
        self.said: list[str] = []
        self.error: BaseException | None = None
        host = EnvHost(
            address,
            security,
            {**facts(env, {}, "machado", spec), **changed},
            spec,
            make_env,
            patience_seconds,
            self.said.append,
            compression,
        )
        self._lanes = lanes
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="env-host")
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._host.serve(self._lanes))
            except BaseException as error:
                self.error = error
            # Events of gRPC for a loop that is closed would be lost with those for other loops.
            with contextlib.suppress(asyncio.CancelledError):
                runner.run(asyncio.sleep(0.2))

    def join(self, seconds: float = 20.0) -> None:
        """Wait for it to end by itself."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """End it without a word to the trainer."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)
        self.join()

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()


@contextlib.contextmanager
def env_host(address: str, *args: Any, **options: Any) -> Iterator[HostThread]:
    """An env-host in a thread, which is stopped at the end."""
    host = HostThread(address, *args, **options)
    try:
        yield host
    finally:
        host.stop()


@dataclasses.dataclass
class HostProcess:
    """An env-host in a process of its own, which can be killed and started again."""

    address: str
    words: tuple[str, ...]
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "sebulba", "env-host", "--connect", self.address]
        self.process = subprocess.Popen(
            [*command, *self.words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self) -> None:
        """Kill it (-9)."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()
