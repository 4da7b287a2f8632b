"""Games of ale-py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ale_py import AtariVectorEnv
from env_battery import EnvBattery

from sebulba import envs
from sebulba.envs.ale import AleEnv, _options
from sebulba.types import ArraySpec, DiscreteSpec, Env

SHORT = {"max_num_frames_per_episode": 80}


@pytest.mark.slow
class TestBreakout(EnvBattery):
    num_steps = 60

    def make(self, seed: int) -> Env:
        # Games that end within the battery's steps.
        return envs.make("ale:breakout", 3, seed=seed, options=SHORT, num_threads=1)


def played(env: Any, num_steps: int, action: int) -> Any:
    timesteps = [env.reset()]
    timesteps += [env.step(np.full(env.spec.num_envs, action)) for _ in range(num_steps)]
    return timesteps


def test_protocols() -> None:
    machado = envs.make("ale:breakout", 2, seed=0)
    # Without no-ops all games start alike.
    assert np.ptp(machado.reset().observation, axis=0).max() == 0
    assert _options("breakout", "impala", {}, AtariVectorEnv)["noop_max"] == 31
    assert machado.spec.action == DiscreteSpec(18)
    assert machado.spec.observation == ArraySpec((84, 84), np.dtype(np.uint8))
    assert machado.spec.frame_skip == 4
    impala = envs.make("ale:breakout", 2, seed=0, atari_protocol="impala", num_threads=1)
    assert impala.spec.action == DiscreteSpec(4)
    # A ball is served again and again, and nobody hits it: five lives, and then the game is over.
    timesteps = played(impala, 400, action=1)
    for number in range(2):
        starts = np.flatnonzero([t.first[number] for t in timesteps])
        ends = np.flatnonzero([t.discount[number] == 0 for t in timesteps])
        assert len(starts) > 1
        assert sum(starts[0] < end < starts[1] for end in ends) == 5
        assert starts[1] == max(end for end in ends if end < starts[1]) + 1
    machado.close()
    impala.close()
    impala.close()


def test_a_time_limit_truncates() -> None:
    env = AleEnv("breakout", 1, 0, options=SHORT)
    timesteps = played(env, 45, action=0)
    assert [t.first[0] for t in timesteps].count(True) == 3
    assert all(t.discount[0] == 1 for t in timesteps)


def test_options() -> None:
    color = AleEnv("ms_pacman", 1, 0, options={"grayscale": False, "frameskip": 2})
    assert color.spec.observation.shape == (84, 84, 3) and color.spec.frame_skip == 2
    assert color.reset().observation.shape == (1, 84, 84, 3)


@pytest.mark.parametrize(
    ("game", "options", "protocol", "says"),
    [
        ("brakout", {}, "machado", "unknown game of ale-py 'brakout': close ones are breakout"),
        (
            "breakout",
            {"frame_skip": 3},
            "machado",
            "breakout 'frame_skip'.*frameskip",
        ),
        (
            "breakout",
            {"episodic_life": True},
            "machado",
            "no option 'episodic_life'.*zero_disc",
        ),
        ("breakout", {}, "nature", "atari_protocol is 'nature'"),
        ("breakout", {"frameskip": "x"}, "machado", "cannot be made with env_options"),
    ],
)
def test_what_is_refused(game: str, options: dict[str, Any], protocol: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        envs.make(f"ale:{game}", 1, seed=0, options=options, atari_protocol=protocol)
