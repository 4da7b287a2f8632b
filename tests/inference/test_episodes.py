"""Returns and lengths against a list of each episode's rewards."""

from __future__ import annotations

import numpy as np

from sebulba.inference import EpisodeTracker
from sebulba.types import Timestep


def timestep(first: list[bool], reward: list[float], discount: float = 1.0) -> Timestep:
    size = len(first)
    return Timestep(
        np.zeros(size), np.float32(reward), np.full(size, discount, np.float32), np.array(first)
    )


def test_random_episodes() -> None:
    rng = np.random.default_rng(0)
    envs, steps = 4, 200
    first = rng.random((steps, envs)) < 0.2
    first[0] = True
    rewards = np.where(first, 0, rng.normal(size=(steps, envs)))
    discounts = rng.integers(0, 2, (steps, envs))
    expected, running = [], [[] for _ in range(envs)]
    tracker = EpisodeTracker(Timestep(None, rewards[0], discounts[0], first[0]))
    got = []
    for t in range(1, steps):
        for env in range(envs):
            if first[t, env]:
                expected.append((sum(running[env]), len(running[env])))
                running[env] = []
            else:
                running[env].append(rewards[t, env])
        tracker.update(Timestep(None, rewards[t], discounts[t], first[t]))
        if t % 7 == 0:
            got += tracker.ended()
    got += tracker.ended()
    assert [length for _, length in got] == [length for _, length in expected]
    np.testing.assert_allclose([r for r, _ in got], [r for r, _ in expected])


def test_only_the_next_episode_ends_one() -> None:
    """Neither a discount of 0 (a lost life, say) nor a reward does."""
    tracker = EpisodeTracker(timestep([True, True], [0, 0]))
    tracker.update(timestep([False, False], [1, 10], discount=0))
    tracker.update(timestep([False, False], [2, 20], discount=0))
    assert tracker.ended() == []
    tracker.update(timestep([True, False], [0, 30]))
    assert tracker.ended() == [(3.0, 2)]
    assert tracker.ended() == []
    tracker.update(timestep([False, True], [5, 0]))
    assert tracker.ended() == [(60.0, 3)]


def test_long_returns_keep_their_digits() -> None:
    tracker = EpisodeTracker(timestep([True], [0]))
    tracker.update(timestep([False], [2.0**24]))
    for _ in range(10):
        tracker.update(timestep([False], [1]))
    tracker.update(timestep([True], [0]))
    assert tracker.ended() == [(2.0**24 + 10, 11)]
