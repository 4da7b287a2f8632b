"""What a newcomer installs and runs: pyproject.toml, constraints.txt and the script `run`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

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
