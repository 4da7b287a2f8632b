"""R2D2: exploration, and two episodes in one replayed sequence."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from r2d2_parts import AGENT, CONFIG, SPEC, loss, make_env, params

from sebulba import R2D2Config, algorithms, losses
from sebulba.inference import epsilon_ladder
from sebulba.learners.r2d2 import ReplayBatch
from sebulba.learners.replay.storage import Sequences
from sebulba.types import Timestep

# Exploration


def test_the_ladder_is_over_the_environments_of_all_hosts() -> None:
    hosts, lanes, num_envs = 2, 3, 4
    total = hosts * lanes * num_envs
    exploration = algorithms.R2D2.make_exploration(R2D2Config(), total)
    assert exploration is not None
    expected = [0.4 ** (1 + 7 * i / (total - 1)) for i in range(total)]
    actors = [exploration.of_actor(number, num_envs)(0.5) for number in range(hosts * lanes)]
    assert {actor.shape for actor in actors} == {(num_envs,)}
    np.testing.assert_allclose(np.concatenate(actors), expected, rtol=1e-6)
    np.testing.assert_allclose(epsilon_ladder(1), [0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("acts", "share"), [("evaluating", 0.3), ("greedily", 0.0), ("training", 0.0)]
)
def test_evaluation_explores_by_its_own_epsilon(acts: algorithms.Acts, share: float) -> None:
    config = dataclasses.replace(CONFIG, evaluation_epsilon=0.3)
    agent = algorithms.R2D2.make_agent(config, SPEC, acts)
    env = make_env(2000)
    output, _ = jax.jit(agent.act)(
        params(), jax.random.key(0), env.reset(), agent.initial_state(2000)
    )
    other = np.asarray(output.action) != np.asarray(output.extras).argmax(axis=-1)
    # A random action is the best one, too, in one of three.
    assert other.mean() == pytest.approx(share * 2 / 3, abs=0.04)


# Two episodes in one sequence


LAST = CONFIG.burn_in + 4
"""The first episode's last timestep; the next timestep is the second's first."""


def two_episodes(discount: float, seed: int, last: int = 0) -> ReplayBatch:
    """Random; the second episode depends on ``seed``, the first one's last frame on ``last``."""

    def random(seed: int, *shape: int) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    length = CONFIG.sequence_length + 1
    frames, reward = random(100, 1, length, 10, 5), random(101, 1, length)
    after = slice(LAST + 1, None)
    frames[:, after], reward[:, after] = random(seed, 10, 5), random(seed + 1, 1)
    frames[:, LAST] += last
    action = np.random.default_rng(102).integers(0, 3, (1, length)).astype(np.int32)
    action[:, LAST:] = np.random.default_rng(seed).integers(0, 3, action[:, LAST:].shape)
    # PreviousAction: that before each timestep, 0 at the start.
    previous = np.concatenate([[[0]], action[:, :-1]], axis=1).astype(np.int32)
    first = np.zeros((1, length), bool)
    first[:, LAST + 1] = True
    previous[first] = 0
    discounts = np.ones((1, length), np.float32)
    discounts[:, LAST] = discount
    discounts[:, LAST + 3] = seed % 2
    observation = {"observation": frames, "last_action": previous}
    timestep = Timestep(observation, reward, discounts, first)
    state = jax.tree.map(lambda leaf: leaf + random(103, *leaf.shape), AGENT.initial_state(1))
    return ReplayBatch(Sequences(timestep, action[:, :-1], state), np.ones(1, np.float32))


@functools.cache
def compiled_errors() -> Any:
    def errors(batch: ReplayBatch) -> jax.Array:
        found = []
        with pytest.MonkeyPatch.context() as patch:
            double_q = losses.n_step_double_q

            def spy(*args: Any, **kwargs: Any) -> Any:
                found.append(double_q(*args, **kwargs))
                return found[0]

            patch.setattr(losses, "n_step_double_q", spy)
            loss(params(), params(seed=5), batch)
        return found[0].td_errors[:, 0]

    return jax.jit(errors)


def td_errors(discount: float, seed: int, last: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Of the first episode, of the second, and of the step between them."""
    errors = np.asarray(compiled_errors()(two_episodes(discount, seed, last)))
    assert errors.shape == (CONFIG.sequence_length - CONFIG.burn_in,)
    between = LAST - CONFIG.burn_in
    return errors[:between], errors[between + 1 :], float(errors[between])


@pytest.mark.parametrize("discount", [0.0, 1.0], ids=["termination", "truncation"])
def test_the_second_episode_changes_nothing_of_the_first(discount: float) -> None:
    first, second, between = td_errors(discount, seed=7)
    other_first, other_second, other_between = td_errors(discount, seed=8)
    np.testing.assert_array_equal(first, other_first)
    assert (second != other_second).all()
    assert between == other_between == 0
    assert (first != 0).all()


def test_truncation_bootstraps_from_the_last_frame_and_termination_does_not() -> None:
    for discount in (0.0, 1.0):
        first, *_ = td_errors(discount, seed=7)
        changed, *_ = td_errors(discount, seed=7, last=3)
        reached = CONFIG.n_step
        np.testing.assert_array_equal(first[:-reached], changed[:-reached])
        assert ((first[-reached:] != changed[-reached:]) == bool(discount)).all()
    assert len(first) > CONFIG.n_step
