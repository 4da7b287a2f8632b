"""Running means and variances of observations, by which a network normalizes them.

They are among the network's parameters, without a gradient: so actors, other hosts, checkpoints and
evaluation have them too. The learner measures each batch that it learns from, averages over its
devices, and absorbs the average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sebulba.types import ArrayTree

LIMIT = 10.0
"""Normalized observations are clipped to +- this, as those of OpenAI Baselines' VecNormalize."""

_ROUNDING = 1e-6
"""Relative to two numbers of float32, what their difference must be to be more than rounding."""


class Moments(NamedTuple):
    """What is known of the arrays of an observation.

    Attributes:
      batches: float32 ``[]``, how many have been absorbed.
      mean: ``[...]`` of each array.
      variance: ``[...]`` of each array.
    """

    batches: jax.Array
    mean: list[jax.Array]
    variance: list[jax.Array]


class Measured(NamedTuple):
    """What was seen in a batch. The mean of that of equal parts is nearly that of the whole.

    Attributes:
      distance: of the mean of each array from the mean so far, ``[...]``.
      square: of that distance.
      variance: ``[...]`` of each array, around its own mean.
    """

    distance: list[jax.Array]
    square: list[jax.Array]
    variance: list[jax.Array]


def initial(shapes: Sequence[tuple[int, ...]]) -> Moments:
    """Those of no observations, by which they stay as they are."""
    mean = [jnp.zeros(shape, jnp.float32) for shape in shapes]
    return Moments(jnp.float32(0), mean, [jnp.ones(shape, jnp.float32) for shape in shapes])


def normalize(moments: Moments, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """``arrays`` ``[T, B, ...]`` with a mean of 0 and a variance of 1, clipped to +- ``LIMIT``."""
    return [
        jnp.clip((array - mean) * jax.lax.rsqrt(variance + 1e-8), -LIMIT, LIMIT)
        for array, mean, variance in zip(arrays, moments.mean, moments.variance, strict=True)
    ]


def measure(
    moments: Moments, arrays: Sequence[jax.Array], average: Callable[[ArrayTree], ArrayTree]
) -> Measured:
    """What a batch of ``arrays`` ``[T, B, ...]`` adds to ``moments``.

    Args:
      moments: those so far.
      arrays: this device's share of the batch.
      average: returns the mean over all devices of a tree.
    """
    # float16 could not hold the squares. And not the means of x and of its square: for x far from
    # 0, their difference would be lost.
    arrays = [array.astype(jnp.float32) for array in arrays]
    means = average([jnp.mean(array, (0, 1)) for array in arrays])
    variance = [
        jnp.mean(jnp.square(a - mean), (0, 1)) for a, mean in zip(arrays, means, strict=True)
    ]
    distance = [mean - before for mean, before in zip(means, moments.mean, strict=True)]
    return Measured(distance, [jnp.square(d) for d in distance], average(variance))


def absorb(moments: Moments, batch: Measured) -> Moments:
    """The moments of all batches so far, each with the same weight, and of one more.

    What would not be finite stays as it was.
    """
    weight = 1 / (moments.batches + 1)
    mean, variance = [], []
    parts = zip(moments.mean, moments.variance, *batch, strict=True)
    for mean_before, before, far, square, within in parts:
        # Between the means of microbatches, if there are several. If all are far from the mean so
        # far, as the first may be from 0, only rounding is left of their differences.
        between = square - jnp.square(far)
        between = jnp.where(between > _ROUNDING * square, between, 0)
        both = (1 - weight) * before + weight * (within + between)
        new = both + weight * (1 - weight) * jnp.square(far)
        is_finite = jnp.isfinite(new)
        mean.append(jnp.where(is_finite, mean_before + weight * far, mean_before))
        variance.append(jnp.where(is_finite, new, before))
    return Moments(moments.batches + 1, mean, variance)
