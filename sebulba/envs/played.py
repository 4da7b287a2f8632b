"""What was seen of environments that were played, and which rules of ``Env`` it breaks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sebulba.envs.base import named_arrays
from sebulba.types import Timestep
from sebulba.validation import ConfigError

Array = np.ndarray[Any, Any]

_ENOUGH = 10  # Episodes from which a rule can be told.


class Resets:
    """What observations look like where an episode starts: the bounds of each of their numbers."""

    def __init__(self, observations: Sequence[Any]) -> None:
        """``observations`` ``[B, ...]``, each of a reset of its own; two or more."""
        batches = [_flat(observation) for observation in observations]
        self._bounds = _bounds(batches)
        # So many numbers of a reset are out of the bounds of the other resets.
        others = [
            _outside(batch, _bounds(batches[:number] + batches[number + 1 :]))
            for number, batch in enumerate(batches)
        ]
        self._usual = np.quantile(np.concatenate(others), 0.9)

    def like(self, observation: Any) -> Array:
        """Which of the environments ``[B]`` have an observation that may be that of a reset."""
        return _outside(_flat(observation), self._bounds) <= self._usual


def _flat(observation: Any) -> Array:
    """All numbers of an observation, ``[B, N]``."""
    arrays = [array for _, array in named_arrays(observation)]
    return np.concatenate([a.reshape(len(a), -1).astype(float) for a in arrays], axis=1)


def _bounds(batches: list[Array]) -> tuple[Array, Array]:
    together = np.concatenate(batches)
    low, high = together.min(axis=0), together.max(axis=0)
    # Another reset would often be a little outside of those few.
    return low - (high - low) / 4, high + (high - low) / 4


def _outside(numbers: Array, bounds: tuple[Array, Array]) -> Array:
    """How many numbers of each environment are out of bounds, ``[B]``."""
    low, high = bounds
    return ((numbers < low) | (numbers > high)).sum(axis=1)


class Played:
    """All timesteps of a batch of environments, without the observations.

    Attributes:
      reward: one float ``[B]`` for each timestep.
      discount: one float ``[B]`` for each timestep.
      first: one bool ``[B]`` for each timestep.
      like_reset: one bool ``[B]`` for each timestep, whether its observation looks like a reset's.
      digest: one int64 ``[B]`` for each timestep, the same for equal observations.
    """

    def __init__(self, resets: Resets) -> None:
        self._resets = resets
        self.reward: list[Array] = []
        self.discount: list[Array] = []
        self.first: list[Array] = []
        self.like_reset: list[Array] = []
        self.digest: list[Array] = []

    def add(self, timestep: Timestep) -> None:
        """Add one timestep, whose arrays are kept."""
        self.reward.append(timestep.reward)
        self.discount.append(timestep.discount)
        self.first.append(timestep.first)
        self.like_reset.append(self._resets.like(timestep.observation))
        self.digest.append(np.array([hash(row.tobytes()) for row in _flat(timestep.observation)]))

    def summary(self) -> tuple[int, float, float, float]:
        """Episodes that ended; their mean length and return; the share that terminated."""
        rows = self.episodes()
        if not len(rows):
            return 0, np.nan, np.nan, np.nan
        length, total, discount = rows.mean(axis=0)
        return len(rows), float(length), float(total), float(1 - discount)

    def episodes(self) -> Array:
        """Length, return and last discount ``[episodes, 3]`` of those that ended."""
        first, reward, discount = map(np.asarray, (self.first, self.reward, self.discount))
        rows = []
        for env in range(first.shape[1]):
            starts = np.flatnonzero(first[:, env])
            for start, after in itertools.pairwise(starts):
                total = reward[start:after, env].sum(dtype=float)
                rows.append((after - start - 1, total, discount[after - 1, env]))
        return np.array(rows).reshape(-1, 3)

    def examine(self) -> list[str]:
        """Return what looks wrong, but can be right.

        Raises:
          ConfigError: a rule is broken.
        """
        _check_discounts(self)
        return [*_about_last_observations(self), *_about_ends(self)]


def _check_discounts(played: Played) -> None:
    discount, first = np.asarray(played.discount), np.asarray(played.first)
    others = (discount != 0) & (discount != 1)
    if others.any():
        step, env = np.argwhere(others)[0]
        raise ConfigError(
            f"the discount of environment {env} is {discount[step, env]} in step {step}: it must "
            "be 0 where an episode has terminated, and 1 everywhere else. Leave the discount "
            "factor to the config."
        )
    within = discount[:-1][~first[:-1] & ~first[1:]]
    if len(within) >= _ENOUGH and (within == 0).mean() > 0.5:
        raise ConfigError(
            f"the discount is 0 in {(within == 0).mean():.0%} of the steps within episodes: it "
            "must be 0 in the step that terminates an episode, and 1 in all others. Return "
            "1 - terminated."
        )


def _about_last_observations(played: Played) -> list[str]:
    first, like = np.asarray(played.first), np.asarray(played.like_reset)
    last = ~first[:-1] & first[1:]
    within = ~first[:-1] & ~first[1:]
    if last.sum() < _ENOUGH or within.sum() < _ENOUGH:
        return []
    of_last, of_within = like[:-1][last].mean(), like[:-1][within].mean()
    if of_last < 0.8 or of_within > of_last / 2:
        return []
    text = (
        f"the last observations of {of_last:.0%} of the episodes look as after a reset, and only "
        f"{of_within:.0%} of the others do: the environment seems to reset in the step that ends "
        "an episode. Return the last observation of the episode there, and the first one of the "
        "next episode in the next step, with first True, reward 0 and discount 1."
    )
    if len(np.unique(np.asarray(played.digest)[:-1][last])) > 1:
        raise ConfigError(text)
    # All the same: a task may well end where it starts, or with an observation of zeros.
    return [text[0].upper() + text[1:]]


def _about_ends(played: Played) -> list[str]:
    episodes = played.episodes()
    ends = int((np.asarray(played.discount) == 0).sum())
    if not len(episodes) and ends:
        return [
            f"The discount was 0 in {ends} steps, and no episode started afterwards. If those were "
            "ends of episodes, environments must reset themselves: return the first timestep of "
            "the next episode, with first True, in the step after the last one. If only lives were "
            "lost, play more steps."
        ]
    if not len(episodes):
        return ["No episode ended, so nothing is known of their ends. Play more steps."]
    if len(episodes) < _ENOUGH:
        return [f"Only {len(episodes)} episodes ended, too few to tell how. Play more steps."]
    lengths, terminated = episodes[:, 0], episodes[:, 2] == 0
    longest = lengths.max()
    at_limit = (lengths[terminated] == longest).mean() if terminated.any() else 0
    if longest > 1 and at_limit > 0.5:
        return [
            f"{at_limit:.0%} of the episodes that terminated (discount 0) did so after exactly "
            f"{longest:.0f} steps. If that is a time limit, it truncates them: the discount must "
            "be 1 there, so that the value of what would have followed is counted."
        ]
    if not terminated.any():
        how = f"after {longest:.0f} steps" if lengths.min() == longest else "at different lengths"
        return [
            f"All {len(episodes)} episodes ended {how} with a discount of 1, as if a time limit "
            "truncated them. If the task itself ended them, the discount must be 0 there."
        ]
    return []
