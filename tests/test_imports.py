"""The order of imports in the package, read from its source, and what ``import sebulba`` costs."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

import sebulba

PACKAGE = ROOT / "sebulba"
LAYERS = [
    {"version", "types", "validation", "losses", "ops", "runtime"},
    {"config", "envs", "metrics", "plugins"},
    {"agents", "devices", "inference", "remote"},
    {"learners"},
    {"algorithms", "presets"},
    {"rundir"},
    {"runners"},
    {"planning"},
    {"cli"},
    {"__main__"},
]
"""Every part (module or folder of the package): each may import those of lower layers only."""
HEAVY = ("jax", "flax", "optax", "orbax", "tyro", "rich", "envpool", "tensorboardX")


def name_of(path: Path) -> str:
    words = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(words).removesuffix(".__init__")


MODULES = {name_of(path): path for path in PACKAGE.glob("**/*.py")}


@functools.cache
def imported(module: str) -> frozenset[str]:
    """All that a module imports, those of its functions and for types included.

    Modules of this package are named in full, and what is imported from one is its module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module} has a relative import"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in whole}
    return frozenset(found)


def part_of(module: str) -> str:
    return module.split(".")[1]


def modules_of(part: str) -> list[str]:
    return [module for module in MODULES if module != "sebulba" and part_of(module) == part]


def external(part: str) -> set[str]:
    """Top-level packages that ``part`` imports itself."""
    names = {name for module in modules_of(part) for name in imported(module)}
    return {name.split(".")[0] for name in names} - {"sebulba"}


def internal(part: str) -> set[str]:
    """Other parts that ``part`` imports itself."""
    names = {name for module in modules_of(part) for name in imported(module)}
    return {part_of(name) for name in names if name.startswith("sebulba.")} - {part}


def reach(module: str) -> set[str]:
    """Modules of this package that ``module`` imports, itself or through others."""
    found: set[str] = set()
    new = set(imported(module)) & set(MODULES)
    while new:
        found |= new
        new = set().union(*(imported(name) & set(MODULES) for name in new)) - found
    return found


def test_every_part_has_a_layer() -> None:
    parts = {part_of(module) for module in MODULES if module != "sebulba"}
    assert set().union(*LAYERS) == parts
    assert sum(map(len, LAYERS)) == len(parts)


def test_the_source_is_read() -> None:
    assert {"jax", "numpy"} <= external("inference")
    assert {"types", "runtime"} <= internal("inference")
    assert "sebulba.learners.update" in reach("sebulba.cli.train")


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_no_part_imports_its_own_layer_or_a_higher_one(layer: int) -> None:
    """So parts do not import one another in a circle either."""
    lower = set().union(*LAYERS[:layer])
    assert {part: internal(part) - lower for part in LAYERS[layer]} == {
        part: set() for part in LAYERS[layer]
    }


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert [module for module in MODULES if module != "sebulba" and module in reach(module)] == []


def test_nothing_in_the_package_imports_its_front() -> None:
    """Its names are for users: they hide where something is from."""
    assert [module for module in MODULES if "sebulba" in imported(module)] == []


def test_acting_and_learning_never_import_each_other() -> None:
    for one, other in (("inference", "learners"), ("learners", "inference")):
        reached = set().union(*(reach(module) for module in modules_of(one)))
        assert other not in {part_of(module) for module in reached}


def test_losses_import_jax_only() -> None:
    assert external("losses") - set(sys.stdlib_module_names) == {"jax"}
    assert internal("losses") == set()


def test_environments_import_no_jax() -> None:
    others = {"numpy", "envpool", "gymnasium", "dm_env", "ale_py"}
    assert external("envs") - set(sys.stdlib_module_names) == others
    assert internal("envs") == {"types", "validation"}


def test_remote_environments_import_no_jax() -> None:
    assert external("remote") - set(sys.stdlib_module_names) == {"numpy", "grpc", "lz4"}
    assert internal("remote") == {"envs", "runtime", "types", "validation", "version"}


def loaded_by(statement: str, *names: str) -> list[str]:
    """Which of the packages ``names`` a statement imports, in a process of its own."""
    code = f"import sys; {statement}; print(*sys.modules.keys() & set(sys.argv[1:]))"
    words = [sys.executable, "-c", code, *names]
    result = subprocess.run(words, check=True, cwd=ROOT, capture_output=True, text=True)
    return result.stdout.split()


def test_importing_the_package_is_quick() -> None:
    assert loaded_by("import sebulba", *HEAVY, "numpy") == []


def test_importing_environments_imports_neither_jax_nor_envpool() -> None:
    assert loaded_by("import sebulba; sebulba.envs.Catch(1, 0)", *HEAVY) == []


def test_the_side_of_the_environments_imports_no_jax() -> None:
    statement = "import sebulba.cli.main, sebulba.remote.env_host"
    assert set(loaded_by(statement, *HEAVY, "grpc")) == {"grpc", "tyro", "rich"}


def test_every_public_name_is_there() -> None:
    assert sebulba.__all__ == sorted(sebulba.__all__)
    assert set(sebulba.__all__) == {*sebulba._MODULES, "__version__"}
    assert dir(sebulba) == sebulba.__all__
    for name in sebulba.__all__:
        value = getattr(sebulba, name)
        assert getattr(sebulba, name) is value, "a second look finds it again"
        if name in sebulba._SUBMODULES:
            assert value is importlib.import_module(sebulba._MODULES[name])
    with pytest.raises(AttributeError, match="module 'sebulba' has no attribute 'nothing'"):
        sebulba.nothing  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    (block,) = (
        node
        for node in ast.parse(MODULES["sebulba"].read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    modules, renamed = {}, {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            name, whole = alias.asname or alias.name, f"{node.module}.{alias.name}"
            modules[name] = whole if whole in MODULES else node.module
            if alias.asname:
                renamed[name] = alias.name
    assert modules == sebulba._MODULES
    assert renamed == sebulba._RENAMED
