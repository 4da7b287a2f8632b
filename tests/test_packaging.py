"""What a newcomer installs and runs: the wheel, the constraints and the script `run`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

from sebulba import __version__

PYTHONS = ["3.11", "3.12", "3.13"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIRECT = [
    Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
]
CONSTRAINTS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def applying(python: str) -> list[Requirement]:
    return [
        constraint
        for constraint in CONSTRAINTS
        if constraint.marker is None or constraint.marker.evaluate({"python_version": python})
    ]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_each_direct_dependency_has_one_tested_version(
    requirement: Requirement, python: str
) -> None:
    name = canonicalize_name(requirement.name)
    found = [c for c in applying(python) if canonicalize_name(c.name) == name]
    assert len(found) == 1
    (pin,) = found[0].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version)


@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_pinned_twice(python: str) -> None:
    names = [canonicalize_name(constraint.name) for constraint in applying(python)]
    assert len(names) == len(set(names))


def test_every_direct_dependency_is_bounded() -> None:
    for requirement in DIRECT:
        assert {bound.operator for bound in requirement.specifier} == {">=", "<"}, requirement


@pytest.mark.parametrize("script", ["run", ".ci/run"])
def test_scripts_can_be_run(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    interpreter = path.read_text().splitlines()[0].removeprefix("#!").split()[-1]
    shell = shutil.which("dash") if interpreter.endswith("/sh") else shutil.which(interpreter)
    subprocess.run([shell or "sh", "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("python", "word"), [("no-such-python", "cannot run"), ("old-python", "is Python 3.10")]
)
def test_run_names_a_python_that_will_not_do(tmp_path: Path, python: str, word: str) -> None:
    script = tmp_path / "run"
    shutil.copy(ROOT / "run", script)
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\necho 3.10\n")
    old.chmod(0o755)
    environment = os.environ | {"PYTHON": str(tmp_path / python)}
    result = subprocess.run([script, "train"], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert word in result.stderr and "3.12" in result.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("name", [".", "tests"])
def test_run_clears_no_folder_but_a_venv(tmp_path: Path, name: str) -> None:
    script = tmp_path / "run"
    shutil.copy(ROOT / "run", script)
    environment = os.environ | {"VENV": name}
    result = subprocess.run([script, "check"], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert f"VENV is '{name}'" in result.stderr and ".venv" in result.stderr
    assert list(tmp_path.iterdir()) == [script]


def test_no_file_names_a_machine_or_a_registry() -> None:
    """Installing must work wherever a reader's own package registry is."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git checkout")
    place = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|opt/wheels)/|py[p]i\.org|python[h]osted")
    option = re.compile(r"--(?:extra-)?index-url|--find-links|--hash")
    for name in filter(None, result.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or b"\0" in path.read_bytes()[:1024]:
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not place.search(line), f"{name}:{number}: {line}"
            assert path != ROOT / "constraints.txt" or not option.search(line), line


def files_of_the_package() -> set[str]:
    """Modules, and the data beside them."""
    found = (ROOT / "sebulba").rglob("*")
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.is_file() and path.suffix != ".pyc"
    }


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    run = [sys.executable, "-m"]
    subprocess.run(
        [*run, "hatchling", "build", "--target", "sdist", "--directory", str(out)],
        cwd=ROOT,
        check=True,
    )
    (source,) = out.glob("*.tar.gz")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*run, "pip", "wheel", *options, "--wheel-dir", str(out), source], check=True)
    (wheel,) = out.glob("*.whl")
    return source, wheel


def test_the_distributions_hold_the_whole_package(distributions: tuple[Path, Path]) -> None:
    source, wheel = distributions
    expected = files_of_the_package()
    assert {"sebulba/devices/placement.json", "sebulba/py.typed"} < expected
    with zipfile.ZipFile(wheel) as archive:
        info = f"sebulba-{__version__}.dist-info/"
        in_wheel = {name for name in archive.namelist() if not name.startswith(info)}
    assert in_wheel == expected
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    others = {"pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"}
    assert in_source - {".gitignore", "PKG-INFO"} == expected | others


@pytest.mark.slow
def test_the_wheel_works_where_there_is_no_checkout(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    wheel = str(distributions[1])
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    # Alone, it has a version and needs nothing else.
    code = "import sebulba, sys; print(sebulba.__version__, sys.modules.keys() & {'jax', 'numpy'})"
    words = [python, "-I", "-c", code]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert printed == f"{__version__} set()\n"
    # Its command, with the dependencies of these tests; an editable install is not among them.
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    words = [python.with_name("sebulba"), "presets"]
    result = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "vtrace-catch" in result.stdout


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
