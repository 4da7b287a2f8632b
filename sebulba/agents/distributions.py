"""Distributions over actions, as pure functions of a network's outputs.

``raw`` is what the policy samples, and ``action`` is what the environment takes. All probabilities
are those of ``raw``. Those of ``action`` differ from them by the Jacobian of the squashing, which
depends on ``raw`` alone: it cancels in the ratio pi / mu, and adds no gradient to log pi. Store
``raw`` with the action: it cannot be computed back from it, because squashing loses digits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.types import ActionSpec, DiscreteSpec, MultiDiscreteSpec
from sebulba.validation import ConfigError

LOG_STD_RANGE = (-5.0, 2.0)
"""Deviations are from 0.0067 to 7.4: nothing overflows, and float32 ratios are exact to 1e-4."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)


class Sample(NamedTuple):
    """An action as the environment takes it, and the raw sample, which has the probability."""

    action: jax.Array
    raw: jax.Array


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Discrete actions 0, ..., num_actions - 1. ``parameters`` are finite logits ``[..., A]``.

    ``action`` and ``raw`` are the same int32 array ``[...]``.
    """

    num_actions: int

    @property
    def parameters_size(self) -> int:
        """Outputs of the network for each environment."""
        return self.num_actions

    def sample(self, key: jax.Array, parameters: jax.Array) -> Sample:
        """Draw one action for each row of ``parameters``."""
        uniform = jax.random.uniform(key, parameters.shape[:-1], _exact(parameters))
        action = _inverse_cdf(uniform, parameters)
        return Sample(action, action)

    def mode(self, parameters: jax.Array) -> Sample:
        """Return the most probable action."""
        action = jnp.argmax(parameters, axis=-1).astype(jnp.int32)
        return Sample(action, action)

    def log_prob(self, parameters: jax.Array, raw: jax.Array) -> jax.Array:
        """Return the log-probability of ``raw``, ``[...]``."""
        log_probs = jax.nn.log_softmax(parameters)
        return jnp.take_along_axis(log_probs, raw[..., None], axis=-1)[..., 0]

    def entropy(self, parameters: jax.Array) -> jax.Array:
        """Return the entropy in nats, ``[...]``."""
        log_probs = jax.nn.log_softmax(parameters)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


@dataclasses.dataclass(frozen=True)
class MultiCategorical:
    """Several independent discrete actions: a product of ``Categorical``.

    ``parameters`` are the finite logits of the first action, then those of the second, and so on:
    ``[..., sum(num_actions)]``. ``action`` and ``raw`` are the same int32 array
    ``[..., len(num_actions)]``.
    """

    num_actions: tuple[int, ...]

    @property
    def parameters_size(self) -> int:
        """Outputs of the network for each environment."""
        return sum(self.num_actions)

    def sample(self, key: jax.Array, parameters: jax.Array) -> Sample:
        """Draw one action of each kind for each row of ``parameters``."""
        keys = jax.random.split(key, len(self.num_actions))
        return self._each(lambda i, one, logits: one.sample(keys[i], logits).action, parameters)

    def mode(self, parameters: jax.Array) -> Sample:
        """Return the most probable action of each kind."""
        return self._each(lambda i, one, logits: one.mode(logits).action, parameters)

    def log_prob(self, parameters: jax.Array, raw: jax.Array) -> jax.Array:
        """Return the log-probability of all actions together, ``[...]``."""
        parts = enumerate(self._parts(parameters))
        return _total([one.log_prob(logits, raw[..., i]) for i, (one, logits) in parts])

    def entropy(self, parameters: jax.Array) -> jax.Array:
        """Return the entropy of all actions together in nats, ``[...]``."""
        return _total([one.entropy(logits) for one, logits in self._parts(parameters)])

    def _each(
        self, choose: Callable[[int, Categorical, jax.Array], jax.Array], parameters: jax.Array
    ) -> Sample:
        parts = self._parts(parameters)
        chosen = [choose(i, one, logits) for i, (one, logits) in enumerate(parts)]
        action = jnp.stack(chosen, axis=-1)
        return Sample(action, action)

    def _parts(self, parameters: jax.Array) -> list[tuple[Categorical, jax.Array]]:
        ends = np.cumsum(self.num_actions)[:-1].tolist()
        logits = jnp.split(parameters, ends, axis=-1)
        return [(Categorical(n), part) for n, part in zip(self.num_actions, logits, strict=True)]


def _total(parts: list[jax.Array]) -> jax.Array:
    return jnp.sum(jnp.stack(parts), axis=0)


def _exact(parameters: jax.Array) -> Any:
    """The dtype to draw random numbers in: float32 or wider."""
    # In bfloat16, jax.random.uniform has only 128 values: rare actions would never be drawn.
    return jnp.promote_types(parameters.dtype, jnp.float32)


def _inverse_cdf(uniform: jax.Array, logits: jax.Array) -> jax.Array:
    """Return the int32 action whose interval of the cumulative distribution holds ``uniform``.

    ``uniform`` is in [0, 1), one number for each row. (``jax.random.categorical`` draws one for
    each action, and on a CPU most of the time goes into drawing random bits.)
    """
    cumulative = jnp.cumsum(jax.nn.softmax(logits), axis=-1)
    # Scaled by the sum as rounded, which may not be 1: a threshold above it would be no action.
    threshold = uniform[..., None] * cumulative[..., -1:]
    # <= and not <, so that an action of probability 0 is never taken, not even for uniform == 0.
    return jnp.sum(cumulative <= threshold, axis=-1, dtype=jnp.int32)


# eq=False: the generated __eq__ and __hash__ would fail on arrays.
@dataclasses.dataclass(frozen=True, eq=False)
class DiagonalGaussian:
    """Continuous actions between ``low`` and ``high`` from independent Gaussians.

    ``parameters`` are ``[..., 2 * D]``: the D means, then the D log standard deviations, where D is
    the number of elements of ``low``. ``raw`` is ``[..., D]``, ``action`` ``[..., *low.shape]``.

    Attributes:
      low: lower bounds.
      high: upper bounds, of the same shape.
      squash: "tanh" maps -inf to ``low`` and +inf to ``high``, which must be finite. "clip" clips
        ``raw``, which is in the environment's own units; bounds may be infinite.

    Raises:
      ConfigError: the bounds differ in shape, are not ordered, or are infinite with "tanh"; or
        ``squash`` is neither.
    """

    low: np.ndarray[Any, np.dtype[np.float32]]
    high: np.ndarray[Any, np.dtype[np.float32]]
    squash: Literal["tanh", "clip"] = "tanh"

    def __post_init__(self) -> None:
        if self.squash not in ("tanh", "clip"):
            raise ConfigError(f"squash is {self.squash!r}; choose 'tanh' or 'clip'.")
        if self.low.shape != self.high.shape or not np.all(self.low < self.high):
            raise ConfigError(
                f"low is {self.low} and high is {self.high}, but every low must be below its high:"
                " correct the action spec of the environment."
            )
        if self.squash == "tanh" and not np.all(np.isfinite([self.low, self.high])):
            raise ConfigError(
                f"low is {self.low} and high is {self.high}, but tanh needs finite bounds to map"
                " to: choose squash='clip' (network.squash, on the command line --network.squash "
                "clip), or bound the actions in the environment."
            )

    @property
    def parameters_size(self) -> int:
        """Outputs of the network for each environment."""
        return 2 * self.low.size

    def sample(self, key: jax.Array, parameters: jax.Array) -> Sample:
        """Draw one action for each row of ``parameters``."""
        mean, log_std = _mean_and_log_std(parameters)
        return self._squashed(
            mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, _exact(mean))
        )

    def mode(self, parameters: jax.Array) -> Sample:
        """Return the squashed mean, whose ``raw`` is the most probable one."""
        mean, _ = _mean_and_log_std(parameters)
        return self._squashed(mean)

    def log_prob(self, parameters: jax.Array, raw: jax.Array) -> jax.Array:
        """Return the log-density of ``raw`` (not of the action), ``[...]``."""
        mean, log_std = _mean_and_log_std(parameters)
        z = (raw - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * jnp.square(z) + log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self, parameters: jax.Array) -> jax.Array:
        """Return the differential entropy in nats, ``[...]``.

        With "tanh" it is that of the action, by Gauss-Hermite quadrature. It is at most that of
        the uniform distribution. That of ``raw``, as which it is computed with "clip", has no
        maximum: a bonus for it would end with actions that are all at their bounds.
        """
        mean, log_std = _mean_and_log_std(parameters)
        entropy = log_std + 0.5 * math.log(2 * math.pi * math.e)
        if self.squash == "tanh":
            raw = mean[..., None] + jnp.exp(log_std)[..., None] * _NODES.astype(np.float32)
            # log(1 - tanh(x)^2), which itself would be log(0) for large x.
            log_slope = 2 * (math.log(2) - raw - jax.nn.softplus(-2 * raw))
            weights = (_WEIGHTS / math.sqrt(2 * math.pi)).astype(np.float32)
            half_range = (self.high / 2 - self.low / 2).reshape(-1)
            entropy += log_slope @ weights + np.log(half_range)
        return jnp.sum(entropy, axis=-1)

    def _squashed(self, raw: jax.Array) -> Sample:
        action = raw.reshape(*raw.shape[:-1], *self.low.shape)
        low, high = jnp.asarray(self.low), jnp.asarray(self.high)
        if self.squash == "tanh":
            # Not (high - low) / 2, since the difference of large bounds may overflow.
            half_range = high / 2 - low / 2
            action = low + half_range * (1.0 + jnp.tanh(action))
        # Clipped after tanh too: rounding may take the action over a bound.
        return Sample(jnp.clip(action, low, high), raw)


def _mean_and_log_std(parameters: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean, log_std = jnp.split(parameters, 2, axis=-1)
    return mean, _within_range(log_std)


@jax.custom_vjp
def _within_range(log_std: jax.Array) -> jax.Array:
    """Clip to ``LOG_STD_RANGE``, with a gradient outside it that can only lead back.

    That of ``jnp.clip`` is 0 there: a deviation that was once too large would stay so.
    """
    return jnp.clip(log_std, *LOG_STD_RANGE)


def _forward(log_std: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _within_range(log_std), log_std


def _backward(log_std: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    low, high = LOG_STD_RANGE
    # Descent moves against the gradient.
    outward = ((log_std <= low) & (gradient > 0)) | ((log_std >= high) & (gradient < 0))
    return (jnp.where(outward, 0, gradient),)


_within_range.defvjp(_forward, _backward)


Distribution = Categorical | MultiCategorical | DiagonalGaussian


def make(action_spec: ActionSpec, squash: Literal["tanh", "clip"] = "tanh") -> Distribution:
    """Return the distribution over the actions of ``action_spec``.

    ``squash`` is for continuous actions only; see ``DiagonalGaussian``, also for errors.
    """
    if isinstance(action_spec, DiscreteSpec):
        return Categorical(action_spec.num_actions)
    if isinstance(action_spec, MultiDiscreteSpec):
        return MultiCategorical(action_spec.num_actions)
    return DiagonalGaussian(action_spec.low, action_spec.high, squash)
