"""A check of environments: it plays them, and says which rule of ``Env`` they break."""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from sebulba.envs.base import finite_bounds, map_arrays, named_arrays, warnings_of_pixels
from sebulba.envs.contract import TimestepCheck, check_spec
from sebulba.envs.played import Played, Resets
from sebulba.types import BoxSpec, DiscreteSpec, EnvSpec, MakeEnv, MultiDiscreteSpec, Timestep
from sebulba.validation import ConfigError

T = TypeVar("T")
Array = np.ndarray[Any, Any]

_RESETS = 6  # Batches that are only reset, to know what the start of an episode looks like.
_COMPARED = 200  # Steps in which batches of the same seed, and of another, are compared.
_KEPT = 32  # Steps for which what was returned must not change.


@dataclasses.dataclass(frozen=True)
class EnvReport:
    """What ``check_env`` saw of environments that break no rule.

    Attributes:
      spec: what the environments say of themselves.
      steps: agent steps played in all B environments.
      episodes: those that ended.
      length: mean length of those in agent steps; NaN if there were none.
      episode_return: mean return of those, with random actions; NaN if there were none.
      terminated: share of those whose last discount was 0; NaN if there were none.
      warnings: what looks wrong, but can be right.
    """

    spec: EnvSpec
    steps: int
    episodes: int
    length: float
    episode_return: float
    terminated: float
    warnings: tuple[str, ...]

    def summary(self) -> dict[str, str]:
        """All but the warnings, in words."""
        arrays = named_arrays(self.spec.observation)
        rows = {f"observation{path}": f"{a.dtype} {list(a.shape)}" for path, a in arrays}
        rows |= {
            "action": _action_in_words(self.spec),
            "frame skip": str(self.spec.frame_skip),
            "steps played": f"{self.steps:,}",
            "episodes that ended": f"{self.episodes:,}",
        }
        if self.episodes:
            rows |= {
                "mean length": f"{self.length:,.6g}",
                "mean return": f"{self.episode_return:,.6g}",
                "terminated": f"{self.terminated:.0%}",
            }
        return rows


def _action_in_words(env_spec: EnvSpec) -> str:
    spec = env_spec.action
    if isinstance(spec, BoxSpec):
        return f"numbers {list(spec.low.shape)} within {spec.low.min():g} to {spec.high.max():g}"
    if isinstance(spec, MultiDiscreteSpec):
        return f"one of each of {list(spec.num_actions)}"
    names = ", ".join(env_spec.action_names[:20]) + ", ..." * (spec.num_actions > 20)
    return f"one of {spec.num_actions}" + f": {names}" * bool(env_spec.action_names)


def check_env(
    make_env: MakeEnv,
    num_envs: int = 4,
    num_steps: int = 2000,
    seed: int = 0,
    timeout_seconds: float = 60.0,
) -> EnvReport:
    """Play environments with random actions, and check that they keep the rules of ``Env``.

    They are made ten times. As in training, they are called in another thread than this one.

    Args:
      make_env: ``make_env(num_envs, seed)``, such as ``sebulba.envs.Catch``.
      num_envs: B, how many are stepped together, at least 1.
      num_steps: how often they are stepped, at least 1. The ends of episodes can only be checked if
        some end within them.
      seed: of the environments and of the actions.
      timeout_seconds: how long one call of the environments may take.

    Raises:
      ConfigError: a rule is broken. The message says which, where, and how to mend it.
    """

    if min(num_envs, num_steps) < 1 or seed < 0 or timeout_seconds <= 0:
        raise ConfigError(
            f"num_envs is {num_envs}, num_steps {num_steps}, seed {seed} and timeout_seconds "
            f"{timeout_seconds}: the first two must be at least 1, the seed at least 0, and the "
            "time above 0."
        )

    def make(seed: int) -> _Envs:
        return _Envs(make_env, num_envs, seed, timeout_seconds)

    observations = []
    for number in range(_RESETS):
        with make(seed + number) as envs:
            observations.append(envs.reset().observation)
    digests = []
    for env_seed in (seed, seed, seed + 1):
        with make(env_seed) as envs:
            timesteps = _play(envs, seed, min(num_steps, _COMPARED))
            digests.append([_digest(timestep) for timestep in timesteps])
    played = Played(Resets(observations))
    with make(seed) as envs:
        for timestep in _play(envs, seed, num_steps):
            played.add(timestep)
    warnings = (
        *played.examine(),
        *_about_seeds(*digests),
        *warnings_of_pixels(envs.spec.observation),
    )
    return EnvReport(envs.spec, num_steps * num_envs, *played.summary(), warnings)


class _Envs:
    """A batch of environments. Whatever they return is checked."""

    def __init__(self, make_env: MakeEnv, num_envs: int, seed: int, seconds: float) -> None:
        self._args = (make_env, num_envs, seed)
        self._call = _Caller(seconds)
        self._kept: deque[tuple[Timestep, Timestep]] = deque(maxlen=_KEPT)

    def __enter__(self) -> _Envs:
        try:
            self._env = self._call("make_env", *self._args)
            self.spec: EnvSpec = getattr(self._env, "spec", None)  # type: ignore[assignment]
            check_spec(self.spec, self._args[1])
            self._check = TimestepCheck(self.spec)
        except BaseException:
            self._call.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._close_twice()
        finally:
            self._call.end()

    def reset(self) -> Timestep:
        timestep = self._call("reset", self._env.reset)
        self._check.reset(timestep)
        return self._keep(timestep)

    def step(self, action: Array) -> Timestep:
        action.flags.writeable = False  # As those of JAX are.
        number = self._check.steps + 1
        timestep = self._call(f"step {number}", self._env.step, action)
        self._check.step(timestep)
        for kept, copy in (self._kept[0], self._kept[-1]):
            _check_unchanged(kept, copy, number)
        return self._keep(timestep)

    def _close_twice(self) -> None:
        self._call("close", self._env.close)
        try:
            self._call("close, called a second time,", self._env.close)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"close raises {error!r} when it is called a second time: it may be called more "
                "than once. Do nothing then."
            ) from error

    def _keep(self, timestep: Timestep) -> Timestep:
        self._kept.append((timestep, _copied(timestep)))
        return self._kept[-1][1]


class _Caller:
    """Calls functions in one other thread, and does not wait for them for ever."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        # A daemon, since a call that hangs must not keep the process from ending.
        threading.Thread(target=self._serve, name="check-env", daemon=True).start()

    def __call__(self, what: str, function: Callable[..., T], *words: Any) -> T:
        self._calls.put(lambda: function(*words))
        try:
            value, error = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            raise ConfigError(
                f"{what} has not returned after {self._seconds:g} s, and training would wait for "
                "it: find out what it waits for, or raise timeout_seconds."
            ) from None
        if isinstance(error, SystemExit):
            raise ConfigError(
                f"{what} ends the process (sys.exit): raise an error that says what is wrong."
            ) from error
        if error is not None:
            if what != "make_env":
                error.add_note(f"in {what} of the environment")
            raise error
        answer: T = value
        return answer

    def end(self) -> None:
        """End the thread, once it has returned from its call."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except BaseException as error:  # Whatever an environment may raise.
                self._answers.put((None, error))


def _play(envs: _Envs, seed: int, num_steps: int) -> Iterator[Timestep]:
    """Reset and step with random actions; the timesteps of both."""
    rng = np.random.default_rng(seed)
    yield envs.reset()
    for _ in range(num_steps):
        yield envs.step(random_action(rng, envs.spec))


def random_action(rng: np.random.Generator, env_spec: EnvSpec) -> Array:
    """One action for each environment, ``[B, ...]``."""
    spec, num_envs = env_spec.action, env_spec.num_envs
    if isinstance(spec, BoxSpec):
        low, high = (np.broadcast_to(b, (num_envs, *spec.low.shape)) for b in (spec.low, spec.high))
        between = rng.uniform(*finite_bounds(low, high))
        # A tenth of them at the bounds, which are allowed too.
        at = rng.uniform(size=between.shape)
        between = np.where((at < 0.05) & np.isfinite(low), low, between)
        between = np.where((at > 0.95) & np.isfinite(high), high, between)
        return between.astype(np.float32)
    if isinstance(spec, DiscreteSpec):
        return rng.integers(spec.num_actions, size=num_envs).astype(np.int32)
    return rng.integers(spec.num_actions, size=(num_envs, len(spec.num_actions))).astype(np.int32)


def _parts(timestep: Timestep) -> list[tuple[str, Any]]:
    observation = timestep.observation
    named = [(f"observation{path}", array) for path, array in named_arrays(observation)]
    return [*named, *list(timestep._asdict().items())[1:]]


def _copied(timestep: Timestep) -> Timestep:
    return Timestep(
        map_arrays(np.array, timestep.observation),
        *(np.array(part) for part in timestep[1:]),
    )


def _check_unchanged(kept: Timestep, copy: Timestep, number: int) -> None:
    for (name, array), (_, before) in zip(_parts(kept), _parts(copy), strict=True):
        if not np.array_equal(array, before):
            raise ConfigError(
                f"step {number} changed the {name} that the environment had returned before: it "
                "must not write to what it has returned, which may not have been read yet. Return "
                "a new array in each step, or a copy."
            )


def _digest(timestep: Timestep) -> bytes:
    parts = (np.ascontiguousarray(part).tobytes() for _, part in _parts(timestep))
    return hashlib.blake2b(b"".join(parts)).digest()


def _about_seeds(one: list[bytes], again: list[bytes], other: list[bytes]) -> list[str]:
    if one != again:
        step = next(i for i, (a, b) in enumerate(zip(one, again, strict=True)) if a != b)
        where = f"in step {step}" if step else "on reset"
        return [
            f"Two batches with the same seed and the same actions differ {where}, so no run can be "
            "repeated. Draw all that is random from the seed."
        ]
    if one == other:
        return [
            f"Batches with different seeds are the same for {len(one) - 1} steps of the same "
            "actions. If the environment has anything random, draw it from the seed."
        ]
    return []
