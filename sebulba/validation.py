"""Rules for the fields of a config, stated in the types of the fields.

For example, a field of type ``Count`` is an ``int`` that must be above 0. ``check_fields`` checks
all fields of a config and of the configs nested in it.
"""

from __future__ import annotations

import dataclasses
import math
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


class Fields:
    """Base of the dataclasses of a config: their values become what they come back as from JSON.

    So numbers and arrays of NumPy become Python's, and lists become tuples, except in a dict, where
    tuples become lists.
    """

    # Here, and not where a config is written: a run must not differ from the one that resumes it.
    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = _plain(getattr(self, field.name))
            value = tuple(value) if isinstance(value, list) else value
            object.__setattr__(self, field.name, value)  # Its class is frozen.


def _plain(value: Any) -> Any:
    # Of NumPy or JAX, neither of which is imported here: the command line's help is quick.
    if hasattr(value, "dtype") and hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # NaN, whose comparisons are False, is none; nor is infinity, which is no number in JSON.
    return (isinstance(value, float) and -math.inf < value < math.inf) or _is_whole(value)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


_COUNT = "must be a whole number above 0"
_POSITIVE = "must be a finite number above 0"

Count = Annotated[int, Rule(_is_count, _COUNT)]
OptionalCount = Annotated[
    int | None, Rule(lambda x: x is None or _is_count(x), f"{_COUNT}, or None")
]
Counts = Annotated[
    tuple[int, ...],
    Rule(
        lambda xs: isinstance(xs, tuple) and all(map(_is_count, xs)),
        "must be a tuple of whole numbers above 0",
    ),
]
Positive = Annotated[float, Rule(_is_positive, _POSITIVE)]
NotNegative = Annotated[
    float, Rule(lambda x: _is_number(x) and x >= 0, "must be a finite number, 0 or more")
]
NotNegativeInt = Annotated[
    int, Rule(lambda x: _is_whole(x) and x >= 0, "must be a whole number, 0 or more")
]
Share = Annotated[
    float, Rule(lambda x: _is_number(x) and 0 <= x <= 1, "must be a number from 0 to 1")
]
ShareBelow1 = Annotated[
    float, Rule(lambda x: _is_number(x) and 0 <= x < 1, "must be a number from 0 to below 1")
]
Limit = Annotated[
    float | None,
    Rule(lambda x: x is None or _is_positive(x), f"{_POSITIVE}, or None for no limit"),
]
LogStd = Annotated[
    float, Rule(lambda x: _is_number(x) and -5 <= x <= 2, "must be a number from -5 to 2")
]
"""Within ``agents.distributions.LOG_STD_RANGE``."""
Seed = Annotated[
    int,
    Rule(lambda x: _is_whole(x) and 0 <= x < 2**32, "must be a whole number from 0 to 2**32 - 1"),
]

_OF_TYPES = {
    bool: Rule(lambda x: isinstance(x, bool), "must be True or False"),
    str: Rule(lambda x: isinstance(x, str), "must be a string"),
}
"""Rules of fields whose types state none."""


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
        raise ConfigError(
            f"{name} is {_get(config, name)!r}: it {rule}. Set {name}, on the command line with "
            f"{_option(config, name)}."
        )


def _option(config: Any, name: str) -> str:
    """That which gives the field ``name`` another value, as tyro names it."""
    # That of the field `lambda_`, a keyword without its _, is --lambda.
    option = name.replace("_", "-").rstrip("-")
    owner, _, own = name.rpartition(".")
    kind = type(_get(config, owner) if owner else config)
    if get_type_hints(kind)[own] is bool and _get(config, name) is True:
        parent, dot, flag = option.rpartition(".")
        option = f"{parent}{dot}no-{flag}"
    return f"--{option}"


def _rules(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Rule]]:
    # get_type_hints, because `from __future__ import annotations` leaves strings in the fields;
    # without include_extras it would drop the rules.
    for name, hint in get_type_hints(kind, include_extras=True).items():
        path = prefix + name
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            yield from ((path, extra) for extra in extras if isinstance(extra, Rule))
        elif hint in _OF_TYPES:
            yield path, _OF_TYPES[hint]
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            yield path, Rule(choices.__contains__, f"must be one of {list(choices)}")
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield path, Rule(hint.__instancecheck__, f"must be a {hint.__name__}")
            yield from _rules(hint, f"{path}.")


def _get(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return config
