"""What needs an optional package says which to install, where it is missing.

Videos and exports, which need a run, are in ``runners/test_video.py`` and ``test_trained.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import envs
from sebulba.cli import env_host

HOST = ["--connect", "127.0.0.1:1", "--env", "sebulba/Catch"]
LISTEN = sebulba.Listen(listen="127.0.0.1:0")
IMPORTERS = {
    "matplotlib.figure": ["sebulba.metrics.figure"],
    "grpc": ["sebulba.remote.transport", "sebulba.remote.listener", "sebulba.remote.env_host"],
}
"""Modules of ours that import a package at their top, and may have done so already."""


def result() -> sebulba.TrainResult:
    nothing: Any = None
    return sebulba.TrainResult(
        nothing, [{"steps": 1, "loss": 1.0}], nothing, envs.Catch, tiny(), updates=1
    )


def train_with_remote_lanes() -> None:
    config = tiny(remote_lanes=1)
    sebulba.train(config, topology=on(1), listen=LISTEN, progress=False)


NEEDS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "result.plot": ("matplotlib.figure", lambda: result().plot(), "install the extra plot"),
    "result.play": ("IPython.display", lambda: result().play(), "pip install ipython"),
    "LivePlot": ("IPython.display", sebulba.LivePlot, "pip install ipython"),
    "ale": ("ale_py", lambda: envs.maker("ale:breakout", {})(1, 0), "install the extra ale"),
    "remote lanes": ("grpc", train_with_remote_lanes, "install the extra remote"),
    "env-host": ("grpc", lambda: env_host.run(HOST), "install the extra remote"),
    "env-host --compress lz4": (
        "lz4.block",
        lambda: env_host.run([*HOST, "--compress", "lz4"]),
        "pip install lz4, which is in the extra remote",
    ),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, use, says = NEEDS[name]
    for importer in IMPORTERS.get(package, []):
        monkeypatch.delitem(sys.modules, importer, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(sebulba.ConfigError, match=says):
        use()
