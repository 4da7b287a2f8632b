"""One environment of each family of EnvPool breaks no rule."""

from __future__ import annotations

import pytest

from sebulba import envs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "env_id",
    [
        "Breakout-v5",
        "gfootball/academy_empty_goal_close-v1",
        "D1Basic-v1",
        "CoinrunEasy-v0",
        "MiniGrid-DoorKey-5x5-v0",
        "LunarLander-v3",
        "CartPole-v1",
        "FrozenLake-v1",
        "highway-v0",
        "Play2048-v1",
        "Jumanji/Snake-v1",
        "HalfCheetah-v4",
        "CheetahRun-v1",
        "FetchReach-v4",
        "MetaWorld/Assembly-v3",
        "MuJoCoPlayground/AlohaHandOver-v1",
        "MyoHandAirplaneFixed-v0",
    ],
)
def test_a_family_breaks_no_rule(env_id: str) -> None:
    try:
        envs.make(env_id, 1, seed=0).close()
    except ValueError as error:
        if "cannot be loaded" in str(error):  # It needs a library of the system.
            pytest.skip(str(error))
        raise
    report = envs.check_env(
        lambda n, seed: envs.make(env_id, n, seed=seed), 2, 200, timeout_seconds=300
    )
    assert report.steps >= 400
