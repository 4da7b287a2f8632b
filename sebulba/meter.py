"""What happened between two lines of metrics."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from sebulba.inference.actor import Unroll

Row = dict[str, float | int | None]


class Meter:
    """Adds up unrolls and updates, and makes a row of metrics of them.

    Attributes:
      steps: real agent steps so far, over all hosts.
      episodes: episodes ended so far.
    """

    def __init__(
        self,
        frame_skip: int,
        num_actors: int,
        *,
        steps: int = 0,
        episodes: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """``steps``, ``episodes`` and ``seconds`` are those of the run that is resumed."""
        self.steps = steps
        self.episodes = episodes
        self._frame_skip = frame_skip
        self._num_actors = num_actors
        self._started = time.perf_counter() - seconds
        self._recent: deque[float] = deque(maxlen=100)
        self._reset()

    @property
    def seconds(self) -> float:
        """Wall time of training so far."""
        return time.perf_counter() - self._started

    def count(self) -> dict[str, float]:
        """What a checkpoint must hold for the next ``Meter`` to go on."""
        episodes = self.episodes + len(self._ended)
        return {"steps": self.steps, "episodes": episodes, "seconds": self.seconds}

    def add_unrolls(self, unrolls: Sequence[Unroll], version: int, waited: float) -> None:
        """Unrolls taken after ``waited`` seconds, when the parameters had ``version``."""
        self._seconds["learner_queue_wait_seconds"] += waited
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

    def row(self, update: int) -> Row:
        """Everything since the last row; means are None where nothing was counted."""
        elapsed = time.perf_counter() - self._since
        steps_per_second = (self.steps - self._steps_before) / elapsed
        self.episodes += len(self._ended)
        self._recent.extend(episode_return for episode_return, _ in self._ended)
        row: Row = {
            "update": update,
            "steps": self.steps,
            "frames": self.steps * self._frame_skip,
            "seconds": self.seconds,
            "steps_per_second": steps_per_second,
            "frames_per_second": steps_per_second * self._frame_skip,
            "episodes": self.episodes,
            "episode_return_mean": _mean([episode[0] for episode in self._ended]),
            "episode_length_mean": _mean([episode[1] for episode in self._ended]),
            "episode_return_mean_100": _mean(self._recent),
            "policy_lag_mean": _mean(self._lags),
            "policy_lag_max": max(self._lags, default=None),
            **{key: self._seconds[key] for key in ("learner_queue_wait_seconds", *_ACTOR_ROW)},
            **{name: value / self._updates for name, value in self._logs.items()},
        }
        self._reset()
        return row

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
    "queue": "actor_queue_wait_seconds",
    "params": "actor_params_wait_seconds",
}
_ACTOR_ROW = tuple(_ACTOR_KEYS.values())


def _mean(values: Sequence[float] | deque[float]) -> float | None:
    return sum(values) / len(values) if values else None
