"""Running moments of observations against those of all observations at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba import NetworkConfig, PolicyAgent, distributions
from sebulba.agents import networks, normalization
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep

T, B = 4, 6
SPEC = EnvSpec(
    {
        "image": ArraySpec((36, 36), np.dtype(np.float32)),
        "kind": ArraySpec((), np.dtype(np.int32)),
        "speed": ArraySpec((2,), np.dtype(np.float32)),
    },
    DiscreteSpec(3),
    B,
)


def alone(tree: Any) -> Any:
    """The mean over one device."""
    return tree


def batch(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    # Far from 0, with little variance, and moving: as the height of something that climbs.
    speed = 1000 + 10 * seed + rng.normal(size=(T, B, 2)) * [0.1, 3]
    return speed.astype(np.float32)


@pytest.mark.parametrize("num_batches", [1, 2, 50])
def test_as_of_all_at_once(num_batches: int) -> None:
    moments = normalization.initial([(2,)])
    batches = [batch(seed) for seed in range(num_batches)]
    for one in batches:
        moments = normalization.absorb(
            moments, normalization.measure(moments, [jnp.asarray(one)], alone)
        )
    together = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(moments.mean[0], together.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(moments.variance[0], together.var((0, 1)), rtol=2e-3)
    (result,) = normalization.normalize(moments, [jnp.asarray(batches[-1])])
    expected = (batches[-1] - together.mean((0, 1))) / together.std((0, 1))
    np.testing.assert_allclose(result, np.clip(expected, -10, 10), atol=0.02)


@pytest.mark.parametrize(("center", "tolerance"), [(0.0, 1e-5), (10.0, 1e-3), (1e4, 0.05)])
def test_microbatches_give_nearly_what_the_batch_gives(center: float, tolerance: float) -> None:
    """The learner averages over them before it absorbs."""
    parts_moments = moments = normalization.initial([(2,)])
    for seed in range(20):
        whole = (batch(0) - 1000 + batch(seed) - batch(0) + center).astype(np.float32)
        parts = np.split(whole, 3, axis=1)
        measured = [normalization.measure(parts_moments, [part], alone) for part in parts]
        mean = jax.tree.map(lambda *x: sum(x) / 3, *measured)
        parts_moments = normalization.absorb(parts_moments, mean)
        moments = normalization.absorb(moments, normalization.measure(moments, [whole], alone))
    np.testing.assert_allclose(parts_moments.mean[0], moments.mean[0], rtol=1e-5)
    np.testing.assert_allclose(parts_moments.variance[0], moments.variance[0], rtol=tolerance)


def test_what_differs_only_between_microbatches_varies_from_the_first_batch_on() -> None:
    seen = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (T, 4, 1))
    moments = normalization.initial([(1,)])
    parts = [normalization.measure(moments, [seen[:, i : i + 1]], alone) for i in range(4)]
    mean = jax.tree.map(lambda *x: sum(x) / 4, *parts)
    np.testing.assert_allclose(normalization.absorb(moments, mean).variance[0], [1.25])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_large_numbers_stay_finite(dtype: Any) -> None:
    moments = normalization.initial([(2,)])
    large = (1000 * np.random.default_rng(0).normal(size=(T, B, 2))).astype(dtype)
    for _ in range(2):
        moments = normalization.absorb(moments, normalization.measure(moments, [large], alone))
        np.testing.assert_allclose(
            moments.variance[0], np.var(np.float64(large), (0, 1)), rtol=0.01
        )
    huge = np.full((T, B, 2), 1e30, np.float32)
    after = normalization.absorb(moments, normalization.measure(moments, [huge], alone))
    np.testing.assert_array_equal(after.variance[0], moments.variance[0])
    np.testing.assert_array_equal(after.mean[0], moments.mean[0])


def test_only_numbers_are_normalized_and_outputs_follow_them() -> None:
    config = NetworkConfig(hidden_sizes=(8,), normalize_observations=True)
    agent = PolicyAgent(config, SPEC, distributions.make(SPEC.action))
    params = agent.init(jax.random.key(0))
    (mean,) = params[networks.MOMENTS].mean
    assert mean.shape == (2,)
    observation = {
        "image": np.zeros((T, B, 36, 36), np.float32),
        "kind": np.zeros((T, B), np.int32),
        "speed": batch(0),
    }
    zeros = np.zeros((T, B), np.float32)
    timesteps = Timestep(observation, zeros, zeros + 1, zeros > 0)
    absorbed = agent.absorb(params, params, agent.measure(params, timesteps, alone))
    moved = timesteps._replace(observation={**observation, "speed": 2 * batch(0) - 5})
    # Whatever an optimizer does to the moments, such as weight decay, is undone.
    spoiled = jax.tree.map(lambda leaf: 0.5 * leaf, params)[networks.MOMENTS]
    measured = agent.measure(params, moved, alone)
    again = agent.absorb({**params, networks.MOMENTS: spoiled}, params, measured)
    one, other = (
        agent.unroll(p, t, agent.initial_state(B))[0].value
        for p, t in ((absorbed, timesteps), (again, moved))
    )
    # Other units and another origin make no difference.
    np.testing.assert_allclose(one, other, atol=1e-3)
    assert np.std(one) > 0.01
    gradient = jax.grad(
        lambda p: jnp.sum(agent.unroll(p, timesteps, agent.initial_state(B))[0].value)
    )
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient(absorbed)[networks.MOMENTS]))


def test_without_it_there_are_no_moments() -> None:
    agent = PolicyAgent(NetworkConfig(), SPEC, distributions.make(SPEC.action))
    params = agent.init(jax.random.key(0))
    assert networks.MOMENTS not in params
    assert agent.absorb(params, params, ()) is params
