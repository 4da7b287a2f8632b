"""The import order of the package, read from its source."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

PACKAGE = ROOT / "sebulba"
ORDER = [
    {"types", "config"},
    {"losses", "envs"},
    {"inference", "learners"},
    {"runner"},
    {"presets", "cli"},
]
"""The parts in the order of the design: none may reach, through whatever modules, a later one."""
INDEPENDENT = [("types", "config"), ("losses", "envs"), ("inference", "learners")]


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every module that a file imports, those of its functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def files(part: str) -> list[Path]:
    """The files of a module or subpackage ``sebulba.part``."""
    module = PACKAGE / f"{part}.py"
    return [module] if module.exists() else sorted((PACKAGE / part).glob("**/*.py"))


def external(part: str) -> set[str]:
    """Top-level packages that ``part`` imports itself."""
    return {name.split(".")[0] for path in files(part) for name in imported(path)} - {"sebulba"}


def internal(part: str) -> set[str]:
    """Parts of this package that ``part`` imports itself."""
    names = (name.split(".") for path in files(part) for name in imported(path))
    return {name[1] for name in names if name[0] == "sebulba" and len(name) > 1} - {part}


def reach(part: str) -> set[str]:
    """Parts that ``part`` imports, itself or through others."""
    found: set[str] = set()
    new = internal(part)
    while new:
        found |= new
        new = set().union(*(internal(name) for name in new)) - found
    return found


def every_part() -> list[str]:
    parts = [path.stem for path in PACKAGE.glob("*.py")]
    parts += [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    return sorted(set(parts) - {"__init__", "__main__"})


def test_every_part_is_read() -> None:
    assert set().union(*ORDER) < set(every_part())
    assert {"types", "queues"} <= reach("inference")
    assert {"jax", "numpy"} <= external("inference")


@pytest.mark.parametrize(
    ("part", "rank"), [(part, rank) for rank, parts in enumerate(ORDER) for part in sorted(parts)]
)
def test_no_part_reaches_a_later_one(part: str, rank: int) -> None:
    later = set().union(*ORDER[rank + 1 :])
    if part == "cli":
        later = set()
    assert not reach(part) & later


@pytest.mark.parametrize("part", every_part())
def test_nothing_imports_in_a_circle(part: str) -> None:
    assert part not in reach(part)


@pytest.mark.parametrize(("one", "other"), INDEPENDENT)
def test_neighbors_never_import_each_other(one: str, other: str) -> None:
    assert other not in reach(one)
    assert one not in reach(other)


def test_losses_import_nothing_but_jax() -> None:
    assert external("losses") <= {"__future__", "jax", "typing", "dataclasses"}
    assert internal("losses") <= {"types"}


def test_envs_import_no_jax() -> None:
    assert not {"jax", "jaxlib", "flax", "optax", "chex"} & external("envs")
    assert internal("envs") <= {"types"}


def test_types_and_config_import_nothing_of_the_package() -> None:
    assert internal("types") == internal("config") == set()


def test_importing_envs_does_not_import_envpool() -> None:
    code = "import sys, sebulba.envs; sys.exit('envpool' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
