"""Human-normalized scores of Atari's games."""

from __future__ import annotations

import pytest
from ale_py import roms

from sebulba.envs import human_scores
from sebulba.envs.envpool import environment_ids


def test_every_game_has_its_place_in_envpool_and_in_ale() -> None:
    found = [scores for name in environment_ids() if (scores := human_scores.scores_of(name))]
    assert sorted(found) == sorted(human_scores.ATARI_57.values()) and len(found) == 57
    assert set(human_scores.ATARI_57) <= set(roms.get_all_rom_ids())


@pytest.mark.parametrize("name", ["Pong-v5", "ale:pong", "gymnasium:ALE/Pong-v5"])
def test_a_return_is_between_random_actions_and_a_human(name: str) -> None:
    assert human_scores.human_normalized(name, -20.7) == 0
    assert human_scores.human_normalized(name, 14.6) == 1
    assert human_scores.human_normalized(name, -3.05) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["CartPole-v1", "sebulba/Catch", "(make_env)", "my:pong", ""])
def test_other_environments_have_none(name: str) -> None:
    assert human_scores.human_normalized(name, 1.0) is None
