"""What happened between two lines of metrics."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sebulba.types import Unroll

Row = dict[str, float | int | None]


class Meter:
    """Adds up unrolls and updates, and makes a row of metrics of them.

    Attributes:
      steps: real agent steps so far, over all hosts.
      episodes: episodes ended so far, over all hosts, up to the last row.
    """

    def __init__(
        self,
        frame_skip: int,
        num_actors: int,
        gather: Callable[[np.ndarray], np.ndarray] = lambda numbers: numbers[None],
        counts: Mapping[str, float] = {},  # Never written to.
    ) -> None:
        """``num_actors`` are those of this host; ``gather`` stacks arrays of all hosts.

        ``counts`` is what ``count`` returned in the run that is resumed.
        """
        self._gather = gather
        self.steps = int(counts.get("steps", 0))
        self.episodes = int(counts.get("episodes", 0))
        self._frame_skip = frame_skip
        self._num_actors = num_actors
        self._started = time.perf_counter() - counts.get("seconds", 0.0)
        self._recent: deque[float] = deque(maxlen=100)
        self._reset()

    @property
    def seconds(self) -> float:
        """Wall time of training so far."""
        return time.perf_counter() - self._started

    def count(self) -> dict[str, float]:
        """What a checkpoint must hold for the next ``Meter`` to go on."""
        return {"steps": self.steps, "episodes": self.episodes, "seconds": self.seconds}

    def add_unrolls(self, unrolls: Sequence[Unroll], version: int) -> None:
        """Unrolls taken when the parameters had ``version``."""
        for unroll in unrolls:
            self._lags.append(version - unroll.version)
            self._ended += unroll.episodes
            for activity, seconds in unroll.seconds.items():
                self._seconds[_ACTOR_KEYS[activity]] += seconds / self._num_actors

    def add_steps(self, steps: Any) -> None:
        """The real agent steps, over all hosts, of one turn."""
        self.steps += int(steps)

    def add_logs(self, logs: Mapping[str, Any]) -> None:
        """The logs, on the host, of one update."""
        self._updates += 1
        for name, value in logs.items():
            self._logs[name] += float(value)

    @contextlib.contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Count the time inside the context as the learner's ``activity``."""
        start = time.perf_counter()
        yield
        self._seconds[f"learner_{activity}_seconds"] += time.perf_counter() - start

    def row(self, update: int) -> Row:
        """Everything since the last row, over all hosts; means are None where nothing counted."""
        elapsed = time.perf_counter() - self._since
        steps_per_second = (self.steps - self._steps_before) / elapsed
        self._recent.extend(episode_return for episode_return, _ in self._ended)
        returns, lengths = zip(*self._ended, strict=True) if self._ended else ((), ())
        means = self._means(returns, lengths, self._recent, self._lags)
        longest = self._gather(np.array([max(self._lags, default=-1)])).max()
        seconds = self._gather(np.array([self._seconds[key] for key in _SECONDS])).mean(axis=0)
        self.episodes += means[0].number
        row: Row = {
            "update": update,
            "steps": self.steps,
            "frames": self.steps * self._frame_skip,
            "seconds": self.seconds,
            "steps_per_second": steps_per_second,
            "frames_per_second": steps_per_second * self._frame_skip,
            "episodes": self.episodes,
            "episode_return_mean": means[0].mean,
            "episode_length_mean": means[1].mean,
            "episode_return_mean_100": means[2].mean,
            "policy_lag_mean": means[3].mean,
            "policy_lag_max": int(longest) if longest >= 0 else None,
            **dict(zip(_SECONDS, seconds.tolist(), strict=True)),
            **{name: value / self._updates for name, value in self._logs.items()},
        }
        self._reset()
        return row

    def _means(self, *samples: Collection[float]) -> list[_Mean]:
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
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._logs: defaultdict[str, float] = defaultdict(float)


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
