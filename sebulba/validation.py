"""Rules for the fields of a config, stated in the types of the fields.

For example, a field of type ``Count`` is an ``int`` that must be above 0. ``check_fields`` checks
all fields of a config and of the configs nested in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """A config that cannot work. The message names the value, the rule and the remedy."""


class Rule(NamedTuple):
    """A rule for a single value.

    Attributes:
      holds: returns whether a value follows the rule.
      says: the rule in words, such as "must be above 0".
    """

    holds: Callable[[Any], bool]
    says: str


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value > 0


_COUNT = "must be a whole number above 0"

Count = Annotated[int, Rule(_is_count, _COUNT)]
OptionalCount = Annotated[
    int | None, Rule(lambda x: x is None or _is_count(x), f"{_COUNT}, or None")
]
Counts = Annotated[tuple[int, ...], Rule(lambda xs: all(map(_is_count, xs)), "must all be above 0")]
# The rules of floats say what holds, not what fails: so NaN, whose comparisons are False, fails.
Positive = Annotated[float, Rule(lambda x: x > 0, "must be above 0")]
NotNegative = Annotated[float, Rule(lambda x: x >= 0, "must be 0 or more")]
NotNegativeInt = Annotated[int, Rule(lambda x: x >= 0, "must be 0 or more")]
Share = Annotated[float, Rule(lambda x: 0 <= x <= 1, "must be from 0 to 1")]
ShareBelow1 = Annotated[float, Rule(lambda x: 0 <= x < 1, "must be from 0 to below 1")]
Limit = Annotated[
    float | None, Rule(lambda x: x is None or x > 0, "must be above 0, or None for no limit")
]
Seed = Annotated[int, Rule(lambda x: 0 <= x < 2**32, "must be from 0 to 2**32 - 1")]


def check_fields(config: Any) -> None:
    """Check every field of the dataclass ``config`` against the rules and choices in its type.

    Raises:
      ConfigError: a field breaks a rule. The message names the field, its value, the rule and
        the remedy.
    """
    for name, rule in _rules(type(config)):
        require(config, name, rule.holds(_get(config, name)), rule.says)


def require(config: Any, name: str, holds: bool, rule: str) -> None:
    """Raise ``ConfigError`` about the field ``name`` (dotted if it is nested) unless ``holds``."""
    if not holds:
        # As tyro names options: that of the field `lambda_`, a keyword without its _, is --lambda.
        option = "--" + name.replace("_", "-").rstrip("-")
        raise ConfigError(f"{name} is {_get(config, name)!r}: it {rule}. Set it with {option}.")


def _rules(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Rule]]:
    # get_type_hints, because `from __future__ import annotations` leaves strings in the fields;
    # without include_extras it would drop the rules.
    for name, hint in get_type_hints(kind, include_extras=True).items():
        path = prefix + name
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            yield from ((path, extra) for extra in extras if isinstance(extra, Rule))
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            yield path, Rule(choices.__contains__, f"must be one of {list(choices)}")
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _rules(hint, f"{path}.")


def _get(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return config
