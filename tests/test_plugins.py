"""Presets in modules of the user's own: ``module:preset``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sebulba import ConfigError, algorithms, envs, plugins, presets
from sebulba.rundir.reading import load_config

MODULE = """
import dataclasses, sebulba

@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(sebulba.VTraceConfig):
    extra: float = 0.5

OWN = sebulba.Algorithm("own", OwnConfig, sebulba.algorithms.VTRACE.make_learner)
sebulba.algorithms.register(OWN)
sebulba.presets.register(OwnConfig(preset="own-catch", env="sebulba/Catch"), "Catch.")
"""


@pytest.fixture(autouse=True)
def nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The current directory is empty, and what a test imports and registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    monkeypatch.setattr(presets, "PRESETS", dict(presets.PRESETS))
    monkeypatch.setattr(algorithms, "_REGISTERED", dict(algorithms._REGISTERED))
    monkeypatch.setattr(envs, "_REGISTERED", dict(envs._REGISTERED))
    yield
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")) + repr(module):
            del sys.modules[name]


def test_the_module_is_imported_and_the_config_says_so(tmp_path: Path) -> None:
    (tmp_path / "own_algorithm.py").write_text(MODULE)
    config = presets.get("own_algorithm:own-catch")
    assert config.preset == "own_algorithm:own-catch"
    assert type(config).__name__ == "OwnConfig"
    # What the library has is there too, for a module that registers an environment only.
    assert presets.get("own_algorithm:vtrace-catch") == dataclasses.replace(
        presets.get("vtrace-catch"), preset="own_algorithm:vtrace-catch"
    )


def test_modules_in_packages(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "own.py").write_text(MODULE)
    assert presets.get("package.own:own-catch").preset == "package.own:own-catch"


def test_nothing_in_the_current_directory_takes_the_place_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise AssertionError")
    assert plugins.resolve("colorsys:something") == "something"
    assert sys.path[-1] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1
    plugins.resolve("colorsys:something")
    assert sys.path.count(str(tmp_path)) == 1


def test_a_saved_config_brings_its_module(tmp_path: Path) -> None:
    (tmp_path / "own_algorithm.py").write_text(MODULE)
    saved = {"algorithm": "own", "preset": "own_algorithm:own-catch", "extra": 0.25}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    config = load_config(tmp_path)
    assert config.preset == "own_algorithm:own-catch"
    assert getattr(config, "extra") == 0.25  # noqa: B009


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing:x", r"'missing:x'.*'missing', which cannot be imported.*PYTHONPATH"),
        ("json.missing:x", r"'json.missing', which cannot be imported"),
        ("own_algorithm.py:x", r"without \.py"),
        ("dir/own:x", r"'dir/own'.*import"),
        (".own:x", r"'\.own'.*import"),
        (":x", r"''.*import"),
        ("json:vtrace-cach", r"'json:vtrace-cach' is unknown.*did you mean json:vtrace-catch"),
        ("json:", r"'json:' is unknown.*see: sebulba presets"),
    ],
)
def test_what_is_wrong_with_a_name(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        presets.get(name)


def test_a_run_whose_module_is_gone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"algorithm": "own", "preset": "gone:own-catch"}')
    with pytest.raises(ConfigError, match=r"config.json cannot be used.*'gone'.*PYTHONPATH"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "error"), [("import missing_package", ModuleNotFoundError), ("1 / 0", ArithmeticError)]
)
def test_what_is_wrong_in_a_module_is_its_own_error(
    text: str, error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "own_algorithm.py").write_text(text)
    with pytest.raises(error) as caught:
        presets.get("own_algorithm:x")
    assert not isinstance(caught.value, ConfigError)


def test_registering_again_replaces() -> None:
    config = dataclasses.replace(presets.get("vtrace-catch"), preset="own")
    for steps in (1, 2):
        presets.register(dataclasses.replace(config, total_steps=steps), f"{steps} steps.")
    assert presets.get("own").total_steps == 2
    assert presets.PRESETS["own"][1] == "2 steps."


@pytest.mark.parametrize("name", ["", "own:preset"])
def test_a_preset_has_a_name_without_a_colon(name: str) -> None:
    config = dataclasses.replace(presets.get("vtrace-catch"), preset=name)
    with pytest.raises(ConfigError, match="a name without a colon"):
        presets.register(config, "Text.")
