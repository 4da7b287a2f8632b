"""Everything public says what it is: ``help(sebulba.train)`` is the reference."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from paths import ROOT

import sebulba
from sebulba import presets
from sebulba.config import flat


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


def test_the_differences_from_the_papers_are_those_of_the_presets() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    r2d2, vtrace = presets.get("r2d2-atari"), presets.get("vtrace-atari")
    assert isinstance(r2d2, sebulba.R2D2Config) and isinstance(vtrace, sebulba.VTraceConfig)
    learned = r2d2.sequence_length - r2d2.burn_in
    for said in (
        f"the last {learned} of a sequence of {r2d2.sequence_length}, after a burn-in of",
        f"replays of each step | {r2d2.replay.samples_per_insert}",
        f"every {r2d2.target_update_period:,} updates | paper",
        f"at the start of each unroll of {r2d2.unroll_length} steps",
        f"{r2d2.batch_size} sequences and {r2d2.replay.capacity:,} in the replay",
        f"T x B = {vtrace.unroll_length * vtrace.batch_size}",
    ):
        assert said in page
    assert r2d2.optimizer.learning_rate == 1e-4 and "| 1e-4 | paper: 1e-4;" in page
    assert r2d2.optimizer.epsilon == 1e-3 / learned and r2d2.optimizer.max_gradient_norm == 1
    assert "docs/algorithms.md" in (sebulba.R2D2Config.__doc__ or "")


def in_backticks(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def fields_of(*kinds: type[sebulba.Config]) -> set[str]:
    """Names of fields and of groups, dotted."""
    return {
        name
        for kind in kinds
        for name in [*flat(dataclasses.asdict(kind())), *dataclasses.asdict(kind())]
    }


ALGORITHMS = {
    "V-trace": sebulba.VTraceConfig,
    "PPO": sebulba.PPOConfig,
    "PQN": sebulba.PQNConfig,
    "R2D2": sebulba.R2D2Config,
}


def test_what_stands_beside_the_equations_has_that_name() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text().partition("## What differs")[0]
    for title, kind in ALGORITHMS.items():
        section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
        assert len(rows) > 3
        for _, code, config in rows[1:]:
            for dotted in in_backticks(code):
                module, name = dotted.split(".")
                assert name in getattr(sebulba, module).__all__
            assert set(in_backticks(config)) <= fields_of(kind)


def test_what_others_are_told_to_set_is_a_field() -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    fields = fields_of(*ALGORITHMS.values()) | {"listen", "processes"}
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    for *_, ours in rows:
        for name in in_backticks(ours):
            if re.fullmatch(r"[a-z]+(_[a-z]+|\.[a-z]+)*_?", name):
                assert name in fields | {"shared", "deep"} or name.startswith("sebulba."), name
            if name.startswith("sebulba."):
                value: Any = sebulba
                for part in re.split(r"[.(]", name.removeprefix("sebulba."))[:2]:
                    value = getattr(value, part, value)
                assert value is not sebulba, name
