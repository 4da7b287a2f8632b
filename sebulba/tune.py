"""The fastest setting of a preset on this machine, by trying.

Only what leaves the learner's batch as it is gets tried: how many environments an actor steps
together, how many actors there are, how many threads step each actor's environments, and in how
many pieces an update is dispatched.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from sebulba import placement
from sebulba.config import Config, ConfigError, R2D2Config
from sebulba.learners import num_pieces
from sebulba.runner import cpu_cores, train

Setting = dict[str, Any]
Measure = Callable[[Config], float]
"""Agent steps/s of a config."""

_COUNTS = ("steps", "seconds")
# Where a turn takes seconds, so many of them say enough.
_FEWEST_TURNS = 4
_FIELDS = ("envs_per_actor", "actors_per_device", "env_threads", "gradient_accumulation")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One setting and what it gave.

    Attributes:
      setting: values of config fields; None leaves the choice to the library.
      steps_per_second: agent steps/s of training.
    """

    setting: Setting
    steps_per_second: float

    def options(self) -> str:
        """The setting as words of a command line."""
        words = (
            f"--{name.replace('_', '-')} {value}"
            for name, value in self.setting.items()
            if value is not None
        )
        return " ".join(words)


def search(config: Config, measure: Measure) -> Iterator[Trial]:
    """Try one field after the other, each with the best values of those before.

    The first trial is the config as it is. The best one is ``max(..., key=steps_per_second)``.
    """
    best = Trial({name: getattr(config, name) for name in _FIELDS}, measure(config))
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
                trial = Trial(setting, measure(dataclasses.replace(config, **setting)))
            except ConfigError:
                continue  # The devices of this machine do not allow it.
            yield trial
            best = max(best, trial, key=lambda each: each.steps_per_second)


def _candidates(config: Config, name: str, setting: Setting) -> Sequence[int]:
    cores = cpu_cores()
    config = dataclasses.replace(config, **setting)
    topology = placement.choose(config).topology
    devices = len(topology.inference)
    if name == "envs_per_actor":
        return [config.batch_size // parts for parts in (1, 2) if config.batch_size % parts == 0]
    if name == "actors_per_device":
        # More than two for each core only wait for one another.
        return [count for count in (1, 2, 3, 4, 8, 16) if count * devices <= 2 * cores]
    if name == "gradient_accumulation":
        return sorted({1, 4, 8} - {num_pieces(config, topology)})
    share = max(1, cores // (config.actors_per_device * devices))
    # With 0, which was tried, every actor has its share.
    return sorted({1, share, cores} - ({share} if config.env_threads == 0 else set()))


class TrainingRate:
    """Measures by training; compilations are kept from one measurement to the next."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: what one measurement should take, once it is compiled."""
        self._seconds = seconds
        self._turns = _FEWEST_TURNS
        self._cache = tempfile.TemporaryDirectory(prefix="sebulba-tune-")
        self._settings = {
            "jax_compilation_cache_dir": self._cache.name,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }

    def __enter__(self) -> TrainingRate:
        self._before = {name: jax.config.values[name] for name in self._settings}
        if not self._before["jax_compilation_cache_dir"]:
            self._configure(self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._configure(self._before)
        self._cache.cleanup()

    def _configure(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)

    def __call__(self, config: Config) -> float:
        """Agent steps/s of training with ``config``, start-up excluded."""
        while True:
            rate = _rate(config, self._turns)
            wanted = round(self._seconds * rate / (config.unroll_length * config.batch_size))
            enough = wanted <= 2 * self._turns
            self._turns = max(_FEWEST_TURNS, wanted)
            if enough:
                return rate


def _rate(config: Config, turns: int) -> float:
    """Agent steps/s of so many turns, after those at the start that say nothing."""
    per_turn = config.unroll_length * config.batch_size
    start = per_turn * (_turns_at_start(config) + turns // 4)
    changes: dict[str, Any] = {
        "total_steps": start + turns * per_turn,
        "log_every": max(1, turns // 10),
        "out": None,
        "resume": False,
    }
    if isinstance(config, R2D2Config):
        # Learning starts at once, in a replay that is allocated quickly.
        smallest = config.sequences_per_update
        changes["replay"] = dataclasses.replace(
            config.replay, capacity=20 * smallest, min_size=smallest
        )
    rows = train(dataclasses.replace(config, **changes), progress=False).metrics
    begin, end = next(row for row in rows if float(row["steps"] or 0) >= start), rows[-1]
    steps, seconds = (float(end[name] or 0) - float(begin[name] or 0) for name in _COUNTS)
    return steps / seconds


def _turns_at_start(config: Config) -> int:
    """Turns that learn nothing yet, or from unrolls that waited for the first compilation."""
    lanes = config.actors_per_device * len(placement.choose(config).topology.inference)
    unrolls = lanes * (config.queue_size + 1)
    if isinstance(config, R2D2Config):  # Every actor has a whole sequence, and they a batch.
        unrolls += lanes * (config.sequence_length // config.unroll_length + 1)
        unrolls += config.sequences_per_update // config.envs_per_actor
    return -(-unrolls * config.envs_per_actor // config.batch_size)
