"""One device, as on most machines, away from the repository."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from command_line import train


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it.


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny config, which no test may change."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        devices = jax.devices()[:1]
        monkeypatch.setattr(jax, "devices", lambda: devices)
        assert train(out) == 0
    return out
