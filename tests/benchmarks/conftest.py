"""The scripts of benchmarks/ are modules in their own folder only."""

from __future__ import annotations

import importlib

import pytest
from benchmark_parts import Load
from paths import ROOT


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports a script of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module
