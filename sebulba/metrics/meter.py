"""Counting what happens between two rows of metrics."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sebulba.types import Histogram, Unroll
from sebulba.validation import ConfigError

Row = dict[str, float | int | None]


class Meter:
    """Adds up unrolls and updates, and turns them into rows of metrics.

    Attributes:
      steps: agent steps so far, without auto-resets, over all hosts.
      episodes: episodes that ended before the last row, over all hosts.
    """

    def __init__(
        self,
        frame_skip: int,
        num_actors: int,
        gather: Callable[[np.ndarray], np.ndarray] = lambda numbers: numbers[None],
        counts: Mapping[str, float] = {},  # Never written to.
    ) -> None:
        """Starts the clock.

        Args:
          frame_skip: frames of the game for each agent step.
          num_actors: actors of this host.
          gather: stacks the arrays of all hosts; the default is that of a single host.
          counts: what ``count`` returned in the run that is resumed.
        """
        self._gather = gather
        self.steps = int(counts.get("steps", 0))
        self.episodes = int(counts.get("episodes", 0))
        self._frame_skip = frame_skip
        self._num_actors = num_actors
        # In the past, if a run is resumed, so that ``seconds`` goes on from its count.
        self._started = time.perf_counter() - counts.get("seconds", 0.0)
        # Returns of this host's last episodes, kept from row to row: a smoother curve.
        self._recent: deque[float] = deque(maxlen=100)
        self._reset()

    @property
    def seconds(self) -> float:
        """Wall time of training so far."""
        return time.perf_counter() - self._started

    def count(self) -> dict[str, float]:
        """What a checkpoint must hold, so that a resumed run can continue counting."""
        return {"steps": self.steps, "episodes": self.episodes, "seconds": self.seconds}

    def moment(self, update: int) -> dict[str, float]:
        """How far training is, after so many updates."""
        frames = self.steps * self._frame_skip
        return {"update": update, "steps": self.steps, "frames": frames, "seconds": self.seconds}

    def add_unrolls(self, unrolls: Sequence[Unroll], version: int) -> None:
        """Count unrolls that the learner took when its parameters had ``version``."""
        for unroll in unrolls:
            self._lags.append(version - unroll.version)
            self._ended += unroll.episodes
            for name, (edges, counts) in unroll.actions.items():
                before = self._actions[name].counts if name in self._actions else 0
                self._actions[name] = Histogram(edges, before + counts)
            # Actors work at the same time: the mean over them compares with the elapsed time.
            for activity, seconds in unroll.seconds.items():
                self._seconds[_ACTOR_KEYS[activity]] += seconds / self._num_actors

    def add_steps(self, steps: Any) -> None:
        """Count the agent steps of one turn, without auto-resets, over all hosts."""
        self.steps += int(steps)

    def add_logs(self, logs: Mapping[str, Any]) -> None:
        """Count one update with its logs, which must be on the host and the same on all hosts."""
        self._updates += 1
        for name, value in logs.items():
            self._logs[name] += float(value)

    @contextlib.contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Count the time inside the context for the learner's ``activity``."""
        start = time.perf_counter()
        yield
        self._seconds[f"learner_{activity}_seconds"] += time.perf_counter() - start

    def actions(self) -> dict[str, Histogram]:
        """Which actions the unrolls of this host have, since the last row."""
        return self._actions

    def row(self, update: int) -> Row:
        """Everything since the last row, over all hosts; a mean of nothing is None.

        Every host must call it at the same turn: it gathers numbers of all hosts, thrice, in a
        fixed order.

        Raises:
          ConfigError: an update logs what the row has already.
        """
        elapsed = time.perf_counter() - self._since
        steps_per_second = (self.steps - self._steps_before) / elapsed
        self._recent.extend(episode_return for episode_return, _ in self._ended)
        returns, lengths = zip(*self._ended, strict=True) if self._ended else ((), ())
        means = self._means(returns, lengths, self._recent, self._lags)
        # -1 for a host without unrolls, as a maximum needs a value from each.
        longest = self._gather(np.array([max(self._lags, default=-1)])).max()
        seconds = self._gather(np.array([self._seconds[key] for key in _SECONDS])).mean(axis=0)
        self.episodes += means[0].number
        row: Row = {
            **self.moment(update),
            "steps_per_second": steps_per_second,
            "frames_per_second": steps_per_second * self._frame_skip,
            "episodes": self.episodes,
            "episode_return_mean": means[0].mean,
            "episode_length_mean": means[1].mean,
            "episode_return_mean_100": means[2].mean,
            "policy_lag_mean": means[3].mean,
            "policy_lag_max": int(longest) if longest >= 0 else None,
            **dict(zip(_SECONDS, seconds.tolist(), strict=True)),
        }
        # Not gathered: the update has averaged them over all hosts.
        logs: Row = {name: value / self._updates for name, value in self._logs.items()}
        self._reset()
        return joined(row, logs)

    def _means(self, *samples: Collection[float]) -> list[_Mean]:
        """The number and the mean of each sample over all hosts."""
        # Sums and counts are gathered, since hosts have different numbers of values.
        local = np.array([[sum(sample), len(sample)] for sample in samples], np.float64)
        totals = self._gather(local).sum(axis=0)
        return [
            _Mean(int(count), float(total / count) if count else None) for total, count in totals
        ]

    def _reset(self) -> None:
        self._since = time.perf_counter()
        self._steps_before = self.steps
        self._updates = 0
        self._lags: list[int] = []
        self._ended: list[tuple[float, int]] = []
        self._actions: dict[str, Histogram] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._logs: defaultdict[str, float] = defaultdict(float)


def joined(*parts: Mapping[str, float | int | None]) -> Row:
    """One row of several, in their order.

    Raises:
      ConfigError: two of them have the same name, of which one must be of the user's own learner.
    """
    row: Row = {}
    for part in parts:
        # Resuming and TensorBoard go by the row's own numbers, so nothing may take their place.
        for name in row.keys() & part.keys():
            raise ConfigError(
                f"the learner has a log {name!r}, which every row of metrics has already: the "
                "names of a row must differ. Rename it in what Learner.update or Learner.metrics "
                "returns."
            )
        row |= part
    return row


_ACTOR_KEYS = {
    "environment": "actor_environment_seconds",
    "act": "actor_act_seconds",
    "transfer": "actor_transfer_seconds",
    "queue": "actor_queue_wait_seconds",
    "params": "actor_params_wait_seconds",
}
_SECONDS = (
    "learner_queue_wait_seconds",
    "learner_update_seconds",
    "learner_publish_seconds",
    *_ACTOR_KEYS.values(),
)


class _Mean(NamedTuple):
    number: int
    mean: float | None
