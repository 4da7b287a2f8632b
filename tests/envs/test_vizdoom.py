"""ViZDoom through EnvPool: its actions and its frames, and how its games start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sebulba import envs
from sebulba.envs import envpool_spec
from sebulba.types import ArraySpec, DiscreteSpec


def test_vizdoom_has_one_discrete_action_and_single_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # It writes a file where it is started.
    env = envs.make("D1Basic-v1", 2, seed=0)
    assert env.spec.action == DiscreteSpec(6)
    names = (
        "NOTHING TURN_RIGHT TURN_LEFT MOVE_FORWARD MOVE_FORWARD+TURN_RIGHT MOVE_FORWARD+TURN_LEFT"
    )
    assert env.spec.action_names == tuple(names.split())
    assert env.spec.observation == ArraySpec((84, 84), np.dtype(np.uint8))
    frames = [env.reset().observation]
    frames += [env.step(np.full(2, action, np.int32)).observation for action in range(6)]
    assert all(frame.shape == (2, 84, 84) and frame.std() > 0 for frame in frames)
    assert any((frame != frames[0]).any() for frame in frames)
    env.close()


def test_vizdoom_names_its_actions() -> None:
    """As many names as EnvPool has actions, all of them different."""
    import envpool

    for env_id in ("D3Battle-v1", "Deathmatch-v1", "MyWayHome-v1", "TakeCover-v1"):
        for force_speed in (False, True):
            native = envpool.make_spec(env_id, use_combined_action=True, force_speed=force_speed)
            spec = envpool_spec.env_spec(native, 1)
            assert spec.action == DiscreteSpec(len(set(spec.action_names)))
    assert spec.action_names == ("NOTHING", "MOVE_RIGHT", "MOVE_LEFT")


# Its games are started by forks, which wait for the threads of OpenBLAS.
STARTS_GAMES = """
import numpy as np
import scipy.linalg.blas
from sebulba import envs

matrix = np.ones((600, 600))
for seed in range(4):
    matrix @ matrix, scipy.linalg.blas.dgemm(1.0, matrix, matrix)
    envs.make("D1Basic-v1", 4, seed=seed).close()
"""


@pytest.mark.slow
def test_vizdoom_starts_beside_linear_algebra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_GAMES]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=90)


BUSY_INTERPRETER = """
import sys, threading
from sebulba.envs import vizdoom

def compute():
    while True:
        sum(range(100))

sys.setswitchinterval(1e-6)
for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
for _ in range(50):
    vizdoom.prepare()
"""


def test_vizdoom_starts_beside_threads_that_want_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY_INTERPRETER]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
