"""Policies over actions: samples against their own probabilities, probabilities against NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agents import distributions
from sebulba.agents.distributions import Categorical, DiagonalGaussian, MultiCategorical
from sebulba.types import BoxSpec, DiscreteSpec

# Between -0.7 and 0.1, low + (high - low) is above high in float32.
LOW = np.array([-1.0, -0.7, -3.0], np.float32)
HIGH = np.array([1.0, 0.1, 0.0], np.float32)
SAMPLES = 100_000


def repeat(row: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.tile(np.array(row, np.float32), (SAMPLES, 1))


def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# Categorical.


def test_categorical_samples_have_their_probabilities() -> None:
    logits = repeat([0.0, 2.0, -1.0, 1.0, -3.0])
    sample = jax.jit(Categorical(5).sample)(jax.random.key(0), logits)
    assert sample.action.dtype == jnp.int32
    np.testing.assert_array_equal(sample.action, sample.raw)
    frequencies = np.bincount(sample.action, minlength=5) / SAMPLES
    # Five standard deviations of the largest frequency.
    np.testing.assert_allclose(frequencies, jax.nn.softmax(logits[0]), atol=0.008)


def test_categorical_rows_are_independent_and_keys_matter() -> None:
    logits = np.zeros((4, 64, 18), np.float32)
    sample = jax.jit(Categorical(18).sample)
    actions = sample(jax.random.key(0), logits).action
    assert actions.shape == (4, 64)
    assert len(np.unique(actions, axis=0)) == 4
    others = sample(jax.random.key(1), logits).action
    assert np.mean(actions == others) < 0.2


def test_categorical_sample_stays_in_range_whatever_the_rounding() -> None:
    inverse_cdf = jax.jit(distributions._inverse_cdf)
    logits = 3.0 * normal(SAMPLES, 18)
    logits[: SAMPLES // 2, [0, -1]] = -1e4  # Of probability 0.
    actions = inverse_cdf(np.full(SAMPLES, np.nextafter(1.0, 0.0, dtype=np.float32)), logits)
    assert np.max(actions[: SAMPLES // 2]) == 16
    assert np.max(actions[SAMPLES // 2 :]) == 17
    actions = inverse_cdf(np.zeros(SAMPLES, np.float32), logits)
    assert np.min(actions[: SAMPLES // 2]) == 1
    assert np.min(actions[SAMPLES // 2 :]) == 0


def test_categorical_log_prob_entropy_and_mode() -> None:
    logits = normal(3, 4, 5)
    p = np.exp(np.float64(logits))
    p /= p.sum(axis=-1, keepdims=True)
    raw = np.random.default_rng(1).integers(5, size=(3, 4))
    policy = Categorical(5)
    expected = np.log(np.take_along_axis(p, raw[..., None], -1))[..., 0]
    np.testing.assert_allclose(jax.jit(policy.log_prob)(logits, raw), expected, rtol=1e-5)
    expected = -(p * np.log(p)).sum(axis=-1)
    np.testing.assert_allclose(jax.jit(policy.entropy)(logits), expected, rtol=1e-5)
    np.testing.assert_array_equal(policy.mode(logits).action, p.argmax(-1))
    assert policy.mode(logits).action.dtype == jnp.int32


def test_categorical_is_finite_for_extreme_logits() -> None:
    policy, logits = Categorical(3), jnp.array([1e4, 0.0, -1e4])

    @jax.jit
    def total(logits: jax.Array) -> jax.Array:
        return policy.log_prob(logits, jnp.array(2)) + policy.entropy(logits)

    assert np.isfinite(total(logits))
    assert np.all(np.isfinite(jax.grad(total)(logits)))


# Diagonal Gaussian.


@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_gaussian_actions_are_within_bounds_and_raw_is_gaussian(squash: str) -> None:
    policy = DiagonalGaussian(LOW, HIGH, squash)
    means, log_stds = [0.0, 1.0, -0.5], [0.0, -1.0, 1.0]
    sample = jax.jit(policy.sample)(jax.random.key(0), repeat([*means, *log_stds]))
    assert np.all((sample.action >= LOW) & (sample.action <= HIGH))
    np.testing.assert_allclose(np.mean(sample.raw, axis=0), means, atol=0.05)
    np.testing.assert_allclose(np.std(sample.raw, axis=0), np.exp(log_stds), rtol=0.02)
    correlations = np.corrcoef(np.asarray(sample.raw).T) - np.eye(3)
    assert np.max(np.abs(correlations)) < 0.02


def test_tanh_maps_onto_the_bounds_and_clip_keeps_the_units() -> None:
    tanh, clip = DiagonalGaussian(LOW, HIGH, "tanh"), DiagonalGaussian(LOW, HIGH, "clip")
    for mean, expected in ((-100.0, LOW), (100.0, HIGH)):
        parameters = jnp.array([mean] * 3 + [0.0] * 3)
        np.testing.assert_array_equal(tanh.mode(parameters).action, expected)
    parameters = jnp.array([0.3, 0.3, 0.3, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(clip.mode(parameters).action, [0.3, 0.1, 0.0], rtol=1e-6)
    half_range = (HIGH - LOW) / 2
    expected = LOW + half_range * (np.tanh(0.3) + 1)
    np.testing.assert_allclose(tanh.mode(parameters).action, expected, rtol=1e-5)
    np.testing.assert_allclose(tanh.mode(parameters).raw, [0.3] * 3, rtol=1e-6)


def test_gaussian_log_prob_is_of_raw() -> None:
    policy = DiagonalGaussian(LOW, HIGH)
    parameters = 0.5 * normal(4, 5, 6)
    raw = np.asarray(policy.sample(jax.random.key(0), parameters).raw)
    mean, log_std = np.split(np.float64(parameters), 2, axis=-1)
    variance = np.exp(2 * log_std)
    density = np.exp(-((raw - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    expected = np.log(density).sum(axis=-1)
    log_prob = jax.jit(policy.log_prob)(parameters, raw)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_gaussian_entropy_is_the_mean_of_minus_log_prob(squash: Any) -> None:
    """Of the action with tanh, whose density has the slope of tanh in it; of raw with clip."""
    policy = DiagonalGaussian(LOW, HIGH, squash)
    parameters = repeat([0.0, 1.0, -0.5, 0.3, -1.0, 1.0])
    raw = jax.jit(policy.sample)(jax.random.key(0), parameters).raw
    log_prob = np.float64(jax.jit(policy.log_prob)(parameters, raw))
    if squash == "tanh":
        slope = (HIGH - LOW) / 2 / np.cosh(np.float64(raw)) ** 2
        log_prob -= np.log(slope).sum(axis=-1)
    np.testing.assert_allclose(policy.entropy(parameters[0]), -np.mean(log_prob), atol=0.03)


def test_no_policy_squashed_by_tanh_is_more_random_than_the_uniform_one() -> None:
    """So a bonus for entropy does not widen it until all actions are at the bounds."""
    policy = DiagonalGaussian(LOW, HIGH)
    uniform = np.log(HIGH - LOW).sum()
    log_stds = np.linspace(-4, 2, 25, dtype=np.float32)
    entropies = [policy.entropy(jnp.array([0.0] * 3 + [log_std] * 3)) for log_std in log_stds]
    best = int(np.argmax(entropies))
    assert uniform - 0.1 < entropies[best] <= uniform
    assert 0.6 < np.exp(log_stds[best]) < 1.2
    slope = jax.grad(policy.entropy)(jnp.array([0.0] * 3 + [1.5] * 3))
    assert np.all(slope[3:] < 0)


@pytest.mark.parametrize(
    ("log_std", "wanted", "moves"),
    [(3, -1, True), (3, 1, False), (-6, 1, True), (-6, -1, False), (0, 1, True)],
)
def test_a_log_std_out_of_range_can_come_back(log_std: float, wanted: float, moves: bool) -> None:
    def loss(log_std: jax.Array) -> jax.Array:
        return -wanted * distributions._within_range(log_std)

    assert float(jax.grad(loss)(jnp.float32(log_std))) == (-wanted if moves else 0)


@pytest.mark.parametrize("log_std", [-1e4, 1e4])
def test_gaussian_is_finite_for_extreme_log_stds(log_std: float) -> None:
    policy = DiagonalGaussian(LOW, HIGH, "clip")
    parameters = jnp.array([0.0] * 3 + [log_std] * 3)
    raw = policy.sample(jax.random.key(0), parameters).raw

    @jax.jit
    def total(parameters: jax.Array) -> jax.Array:
        return policy.log_prob(parameters, raw) + policy.entropy(parameters)

    assert np.isfinite(total(parameters))
    assert np.all(np.isfinite(jax.grad(total)(parameters)))
    limit = distributions.LOG_STD_RANGE[int(log_std > 0)]
    expected = 3 * (limit + 0.5 * np.log(2 * np.pi * np.e))
    np.testing.assert_allclose(policy.entropy(parameters), expected, rtol=1e-5)


def test_gaussian_over_a_matrix_of_actions() -> None:
    policy = DiagonalGaussian(np.full((2, 3), -2.0, np.float32), np.ones((2, 3), np.float32))
    assert policy.parameters_size == 12
    parameters = np.zeros((7, 12), np.float32)
    sample = jax.eval_shape(policy.sample, jax.random.key(0), parameters)
    assert sample.action.shape == (7, 2, 3)
    assert sample.raw.shape == (7, 6)
    assert jax.eval_shape(policy.log_prob, parameters, sample.raw).shape == (7,)


def test_clip_leaves_an_infinite_side_open() -> None:
    policy = DiagonalGaussian(
        np.array([-np.inf, 0.0], np.float32), np.array([1.0, np.inf], np.float32), "clip"
    )
    for mean, expected in ((-1e6, [-1e6, 0.0]), (1e6, [1.0, 1e6])):
        action = policy.mode(jnp.array([mean, mean, 0.0, 0.0])).action
        np.testing.assert_allclose(action, expected)


def test_bad_bounds_are_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"inf.*squash='clip'"):
        DiagonalGaussian(LOW, np.array([1.0, 1.0, np.inf], np.float32), "tanh")
    with pytest.raises(ValueError, match="must be below its high"):
        DiagonalGaussian(HIGH, LOW)
    with pytest.raises(ValueError, match="must be below its high"):
        DiagonalGaussian(LOW[:2], HIGH)
    with pytest.raises(ValueError, match="choose 'tanh' or 'clip'"):
        DiagonalGaussian(LOW, HIGH, "sigmoid")


def test_make_follows_the_spec() -> None:
    discrete = distributions.make(DiscreteSpec(num_actions=6))
    assert isinstance(discrete, Categorical)
    assert discrete.parameters_size == 6
    box = distributions.make(BoxSpec(LOW, HIGH), squash="clip")
    assert isinstance(box, DiagonalGaussian)
    assert box.squash == "clip"
    assert box.parameters_size == 6


def test_several_discrete_actions_are_independent_categoricals() -> None:
    """Samples have the product of the probabilities; log_prob and entropy are sums."""
    both = MultiCategorical((2, 3))
    logits = jnp.log(jnp.array([0.25, 0.75, 0.5, 0.3, 0.2]))
    rows = jnp.broadcast_to(logits, (50_000, 5))
    action = both.sample(jax.random.key(0), rows).action
    assert action.dtype == jnp.int32 and action.shape == (50_000, 2)
    joint = np.bincount(np.asarray(action[:, 0] * 3 + action[:, 1]), minlength=6) / 50_000
    expected = np.outer([0.25, 0.75], [0.5, 0.3, 0.2]).ravel()
    np.testing.assert_allclose(joint, expected, atol=0.01)
    every = jnp.array([[first, second] for first in range(2) for second in range(3)])
    found = both.log_prob(jnp.broadcast_to(logits, (6, 5)), every)
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-5)
    np.testing.assert_allclose(
        both.entropy(logits), -(expected * np.log(expected)).sum(), rtol=1e-5
    )
    assert both.mode(logits).action.tolist() == [1, 0]
