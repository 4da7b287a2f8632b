"""Everything public says what it is: ``help(sebulba.train)`` is the reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import sebulba


def public() -> Iterator[tuple[str, Any]]:
    """The public names of the package and of its public modules, with their values."""
    for name in sebulba.__all__:
        value = getattr(sebulba, name)
        yield name, value
        for inner in getattr(value, "__all__", []) if isinstance(value, ModuleType) else []:
            yield f"{name}.{inner}", getattr(value, inner)


PUBLIC = dict(public())
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


def is_written(value: Any) -> bool:
    """Whether there is a docstring, and not the signature that dataclasses and tuples put there."""
    text = inspect.getdoc(value) or ""
    return bool(text) and not (inspect.isclass(value) and text.startswith(f"{value.__name__}("))


def methods(kind: type) -> Iterator[str]:
    """Public functions and properties of a class, those that it inherits within the package too.

    Fields that hold functions are described with the other fields.
    """
    fields = getattr(kind, "__dataclass_fields__", {})
    for name, value in inspect.getmembers_static(kind):
        inner = value.fget if isinstance(value, property) else getattr(kind, name)
        ours = str(getattr(inner, "__module__", "")).startswith("sebulba")
        is_method = ours and callable(inner) and not inspect.isclass(inner) and name not in fields
        if is_method and not name.startswith("_"):
            yield name


def test_docstrings_that_nobody_wrote_are_known() -> None:
    assert is_written(sebulba.Env) and not is_written(type("A", (), {"__doc__": None}))
    assert "validate" in methods(sebulba.VTraceConfig)
    assert {"spec", "step"} <= set(methods(sebulba.Env))


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"__version__"}))
def test_public_names_have_docstrings(name: str) -> None:
    # A type alias has none: what it stands for is beside it in the source.
    value = PUBLIC[name]
    if isinstance(value, ModuleType) or inspect.isclass(value) or inspect.isfunction(value):
        assert is_written(value)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_their_methods_have_docstrings(name: str) -> None:
    kind = CLASSES[name]
    found = set(methods(kind))
    # What an environment does is said once, in its protocol.
    env = set(methods(sebulba.Env))
    told = env if found >= env and kind is not sebulba.Env else set()
    assert [each for each in found - told if not inspect.getdoc(getattr(kind, each))] == []
