"""The fastest settings of a preset on this machine, found by trying them.

Only settings that keep the learner's batch size are tried: how many environments an actor steps
together, how many actors there are, how many threads step each actor's environments, and in how
many microbatches an update is computed.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from sebulba import algorithms
from sebulba.config import Config, EvaluationConfig
from sebulba.devices import placement
from sebulba.devices.topology import Topology
from sebulba.envs.base import cpu_cores
from sebulba.runners.training import train
from sebulba.validation import ConfigError

Setting = dict[str, Any]
Measure = Callable[[Config], float]
"""Gives the agent steps/s of a config."""

_COUNTS = ("steps", "seconds")
_NEVER = 2**31
# Enough for a measurement if a single turn takes seconds.
_FEWEST_TURNS = 4
_FIELDS = ("envs_per_actor", "actors_per_device", "env_threads", "num_microbatches")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One setting and its result.

    Attributes:
      setting: values of config fields; None leaves the choice to the library.
      steps_per_second: agent steps/s of training; 0 if it failed.
      error: the first line of the error if it failed.
    """

    setting: Setting
    steps_per_second: float
    error: str | None = None

    def options(self) -> str:
        """The setting as options of the command line."""
        words = (
            f"--{name.replace('_', '-')} {value}"
            for name, value in self.setting.items()
            if value is not None
        )
        return " ".join(words)


def search(config: Config, measure: Measure) -> Iterator[Trial]:
    """Try one field after the other, each with the best values of the fields before it.

    The first trial is the config as it is. The best setting is the trial with the highest
    ``steps_per_second``. A trial that fails, such as one that needs too much memory, does not end
    the search.

    Raises:
      ConfigError: the config as it is cannot work.
    """
    best = _trial(config, {name: getattr(config, name) for name in _FIELDS}, measure)
    yield best
    tried = [best.setting]
    for name in _FIELDS:
        start = best
        for value in _candidates(config, name, start.setting):
            setting = {**start.setting, name: value}
            if setting in tried:
                continue
            tried.append(setting)
            try:
                trial = _trial(config, setting, measure)
            except ConfigError:
                continue  # Such a config is not possible on the devices of this machine.
            yield trial
            best = max(best, trial, key=lambda each: each.steps_per_second)


def _trial(config: Config, setting: Setting, measure: Measure) -> Trial:
    try:
        return Trial(setting, measure(dataclasses.replace(config, **setting)))
    except ConfigError:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        failed = Trial(setting, 0.0, f"{type(error).__name__}: {first_line}")
    # After the except clause, which holds the error: the frames of its traceback keep the trial's
    # arrays alive, whose memory the next trial needs.
    gc.collect()
    return failed


def _candidates(config: Config, name: str, setting: Setting) -> Sequence[int]:
    cores = cpu_cores()
    config = dataclasses.replace(config, **setting)
    devices = len(_topology(config).inference)
    if name == "envs_per_actor":
        size = config.envs_per_actor
        return [2 * size, *([size // 2] if size % 2 == 0 else [])]
    if name == "actors_per_device":
        # More than two actors on each core would only wait for each other.
        return [count for count in (1, 2, 3, 4, 8, 16) if count * devices <= 2 * cores]
    if name == "num_microbatches":
        return [1, 4, 8]
    # What is left is ``env_threads``. Its 0 means an equal share of the cores: not tried twice.
    share = max(1, cores // (config.actors_per_device * devices))
    return sorted({1, share, cores} - ({share} if config.env_threads == 0 else set()))


class TrainingRate:
    """Measures by training; a context manager, inside which compiled programs are cached."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: how long one measurement should take, without compiling."""
        self._seconds = seconds
        self._turns = _FEWEST_TURNS
        self._cache = tempfile.TemporaryDirectory(prefix="sebulba-tune-")

    def __enter__(self) -> TrainingRate:
        settings = {
            # A cache that the user has set (JAX_COMPILATION_CACHE_DIR) serves other commands too.
            "jax_compilation_cache_dir": jax.config.values["jax_compilation_cache_dir"]
            or self._cache.name,
            # By default, programs that compile within a second are not cached.
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }
        self._before = {name: jax.config.values[name] for name in settings}
        self._configure(settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._configure(self._before)
        self._cache.cleanup()

    def _configure(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # It stays with the directory that it first used.

    def __call__(self, config: Config) -> float:
        """Agent steps/s of training with ``config``, start-up excluded."""
        # How many turns take the wanted time is only known after a first measurement. It is
        # repeated with more turns if it took less than half of that time.
        while True:
            rate = _rate(algorithms.of(config).for_trial(config), self._turns)
            wanted = round(self._seconds * rate / _steps_per_turn(config))
            enough = wanted <= 2 * self._turns
            self._turns = max(_FEWEST_TURNS, wanted)
            if enough:
                return rate


def _rate(config: Config, turns: int) -> float:
    """Agent steps/s over ``turns`` turns, not counting those at the start."""
    # Rows of metrics come every ``every`` turns. The rate is that between two of them: the last of
    # ``warm`` rows at the start, and the one that comes ``rows`` rows later.
    every = max(1, turns // 10)
    warm = math.ceil((_turns_at_start(config) + turns // 4) / every)
    rows = turns // every
    # A turn counts at most ``per_turn`` steps, since auto-resets do not count, so there will be at
    # least ``warm + rows`` rows. One more may follow after the actors have ended: it is not used,
    # since ending them is not training.
    per_turn = _steps_per_turn(config)
    changes: dict[str, Any] = {
        "total_steps": (warm + rows) * every * per_turn,
        "log_every": every,
        "out": None,
        "resume": False,
        # A checkpoint would add a row of its own.
        "evaluation": EvaluationConfig(),
        "checkpoint": dataclasses.replace(config.checkpoint, interval=_NEVER),
    }
    metrics = train(dataclasses.replace(config, **changes), progress=False).metrics
    begin, end = metrics[warm - 1], metrics[warm + rows - 1]
    steps, seconds = (float(end[name] or 0) - float(begin[name] or 0) for name in _COUNTS)
    return steps / seconds


def _turns_at_start(config: Config) -> int:
    """Turns without updates, or with unrolls that waited in queues during the compilation."""
    algorithm = algorithms.of(config)
    lanes = config.actors_per_device * len(_topology(config).inference)
    steps = algorithm.steps_before_learning(config, lanes)
    # Each actor has filled its queue, and holds one more unroll, when the first update is compiled.
    steps += lanes * (config.queue_size + 1) * config.envs_per_actor * config.unroll_length
    return -(-steps // _steps_per_turn(config))


def _steps_per_turn(config: Config) -> int:
    unrolls = algorithms.of(config).unrolls_per_turn(config)
    return unrolls * config.envs_per_actor * config.unroll_length


def _topology(config: Config) -> Topology:
    algorithm = algorithms.of(config)
    return placement.choose(config, lambda n: algorithm.fits(config, n)).topology
