"""What the scaling benchmark asks Google; the client is a stand-in."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import pytest
from paths import ROOT

FILE = ROOT / "benchmarks" / "cloud_tpu.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("cloud_tpu", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Client:
    """Healthy after a wait."""

    def __init__(self, tpu: str) -> None:
        self.tpu, self.answer = tpu, "UNHEALTHY_MAINTENANCE"
        if tpu == "nowhere":
            raise ValueError("Could not lookup TPU metadata from name 'nowhere'")

    def wait_for_healthy(self, timeout_s: int, interval: int) -> None:
        assert timeout_s == 60 and 0 < interval <= 60
        self.answer = "HEALTHY"

    def name(self) -> str:
        return self.tpu

    def accelerator_type(self) -> str:
        return "v3-8"

    def state(self) -> str:
        return "READY"

    def health(self) -> str:
        return self.answer

    def runtime_version(self) -> str:
        return "tpu-vm-base"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("cloud_tpu_client")
    module.Client = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", module)
    monkeypatch.delenv("TPU_NAME", raising=False)


def test_it_says_why_it_cannot_ask(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TPU_NAME is not set" in load().describe()
    assert "Could not lookup" in load().describe("nowhere")
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    assert "pip install -e '.[cloud]' in a clone" in load().describe("mine")


def test_what_is_recorded(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "mine")
    found = load().describe()
    assert found == {
        "name": "mine",
        "accelerator_type": "v3-8",
        "state": "READY",
        "health": "UNHEALTHY_MAINTENANCE",
        "runtime": "tpu-vm-base",
    }
    assert load().describe(wait_seconds=60)["health"] == "HEALTHY"
