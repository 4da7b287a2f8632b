"""What a learner of the user's own returns; a loss and targets are checked while traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.learners.base import Learner, Logs
from sebulba.types import ArrayTree
from sebulba.validation import ConfigError

_NUMBERS = (jax.Array, np.ndarray, np.generic, float, int)


def checked_pair(learner: Learner, method: str, result: Any, first: str) -> tuple[Any, Logs]:
    """What ``method`` has returned, if it is ``first`` and scalars to log.

    Raises:
      ConfigError: it is something else.
    """
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    if not is_pair or not isinstance(result[1], Mapping):
        raise ConfigError(
            f"{type(learner).__name__}.{method} returns {_in_words(result)}: it must return the "
            f"{first} and a dict of scalars to log. Return ({first}, {{}}) to log nothing more."
        )
    value, logs = result
    check_logs(learner, method, logs)
    return value, dict(logs)


def check_logs(learner: Learner, method: str, logs: Mapping[str, Any]) -> None:
    """Check that the logs that ``method`` has returned are scalars by name.

    Raises:
      ConfigError: one of them is something else, or has the name of a result of an evaluation.
    """
    for name, value in logs.items():
        if not isinstance(name, str) or name.startswith("evaluation_"):
            raise ConfigError(
                f"{type(learner).__name__}.{method} has a log {name!r}: a name must be a string, "
                "and not begin with evaluation_, as results of evaluations do. Rename it."
            )
        _check_scalar(learner, method, f"{name!r} in the logs", value)


def check_histograms(learner: Learner, histograms: Mapping[str, Any]) -> None:
    """Check that ``Learner.histograms`` has returned edges ``[N+1]`` and counts ``[N]`` by name.

    Raises:
      ConfigError: it has returned something else.
    """
    for name, value in histograms.items():
        is_pair = isinstance(value, tuple) and len(value) == 2
        edges, counts = map(np.shape, value) if is_pair else ((), ())
        if len(edges) != 1 or len(counts) != 1 or edges[0] != counts[0] + 1:
            raise ConfigError(
                f"{type(learner).__name__}.histograms: {name!r} is {_in_words(value)}; it must be "
                "the N+1 edges and the N counts between them. Return a sebulba.Histogram, as "
                "sebulba.Histogram(edges, counts)."
            )


def checked_loss(learner: Learner, result: Any) -> tuple[jax.Array, Logs]:
    """What ``loss`` has returned, if it is a scalar to differentiate and scalars to log.

    Raises:
      ConfigError: it is something else.
    """
    total, logs = checked_pair(learner, "loss", result, "loss")
    _check_scalar(learner, "loss", "the loss", total)
    name = f"{type(learner).__name__}.loss"
    if not jnp.issubdtype(jnp.result_type(total), jnp.floating):
        raise ConfigError(
            f"{name}: the loss is {_in_words(total)}; it must be a floating-point number, since "
            "others have no gradient. Compute it from the outputs of the network, as floats."
        )
    for key in logs.keys() & {"loss", "gradient_norm"}:
        raise ConfigError(
            f"{name} has a log {key!r}, which the update adds by itself: names of logs must "
            "differ. Rename it."
        )
    return total, logs


def checked_targets(learner: Learner, result: Any, lead: tuple[int, ...]) -> tuple[ArrayTree, Logs]:
    """What ``targets`` has returned, if it is arrays ``[T, B, ...]`` and scalars to log.

    Args:
      lead: T and B.

    Raises:
      ConfigError: it is something else.
    """
    targets, logs = checked_pair(learner, "targets", result, "targets")
    for path, leaf in jax.tree.leaves_with_path(targets):
        if jnp.shape(leaf)[:2] != lead:
            raise ConfigError(
                f"{type(learner).__name__}.targets: the targets{jax.tree_util.keystr(path)} are "
                f"{_in_words(leaf)}; they must begin with the axes [T, B], here {list(lead)}: "
                "return one for each step of each environment, in the order of the trajectory."
            )
    return targets, logs


def joined_logs(learner: Learner, of_loss: Logs, of_targets: Logs) -> Logs:
    """The logs of one turn.

    Raises:
      ConfigError: two of them have the same name.
    """
    for name in of_loss.keys() & of_targets.keys():
        raise ConfigError(
            f"{type(learner).__name__}.targets has a log {name!r}, which the loss and its update "
            "have already: names of logs must differ. Rename it."
        )
    return of_loss | of_targets


def _check_scalar(learner: Learner, method: str, name: str, value: Any) -> None:
    is_array = isinstance(value, _NUMBERS)
    if is_array and jnp.shape(value) == ():
        return
    remedy = (
        "Take the mean over all steps and environments, as jnp.mean does"
        if is_array
        else "Return the number, or an array without axes"
    )
    raise ConfigError(
        f"{type(learner).__name__}.{method}: {name} is {_in_words(value)}; it must be one number. "
        f"{remedy}."
    )


def _in_words(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_in_words, value))})"
    if isinstance(value, _NUMBERS):
        return f"{jnp.result_type(value)}{list(jnp.shape(value))}"
    return "None" if value is None else f"a {type(value).__name__}"
