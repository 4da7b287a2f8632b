"""One environment of each family of EnvPool breaks no rule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# In a process of its own: native code may wait for ever, and then no timeout of Python's is heard.
CHECK = """
import sys
from sebulba import envs

env_id = sys.argv[1]
try:
    envs.make(env_id, 1, seed=0).close()
except ValueError as error:
    if "cannot be loaded" in str(error):  # It needs a library of the system.
        sys.exit(f"SKIP {error}")
    raise
report = envs.check_env(
    lambda n, seed: envs.make(env_id, n, seed=seed), 2, 200, timeout_seconds=100
)
assert report.steps >= 400
"""


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
def test_a_family_breaks_no_rule(env_id: str, tmp_path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-c", CHECK, env_id],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if checked.stderr.startswith("SKIP"):
        pytest.skip(checked.stderr)
    assert checked.returncode == 0, checked.stderr
