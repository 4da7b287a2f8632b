"""Refusing hosts that run something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sebulba import ConfigError, presets
from sebulba.devices import distributed


def hosts(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """A second host, which gathers something else."""
    monkeypatch.setattr(distributed, "gather", lambda mine: np.stack([mine, change(mine.copy())]))


def test_equal_hosts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts(monkeypatch, lambda mine: mine)
    distributed.agree(presets.get("vtrace-catch"), "vtrace", "a0-l1")


def test_what_differs_between_hosts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.get("vtrace-catch")
    order = list({**distributed._facts(config, "vtrace"), "layout": "", "params": ""})
    assert {"seed", "version of jax", "version of libtpu", "layout"} <= set(order)
    for name in ("algorithm", "seed", "version of jax", "layout", "params"):

        def change(mine: np.ndarray, number: int = order.index(name)) -> np.ndarray:
            if len(mine) > 1:
                mine[number] += 1
            return mine

        hosts(monkeypatch, change)
        with pytest.raises(ConfigError, match=rf"^{name} is not the same .* host\(s\) \[1\]"):
            distributed.agree(config, "vtrace", "a0-l1")


def test_hosts_with_other_fields_gather_arrays_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def gather(mine: np.ndarray) -> np.ndarray:
        sizes.append(mine.shape)
        return np.stack([mine, mine + 1])

    monkeypatch.setattr(distributed, "gather", gather)
    for preset in ("vtrace-catch", "r2d2-catch"):
        with pytest.raises(ConfigError, match="names of the config's fields"):
            distributed.agree(presets.get(preset), "vtrace", "a0-l1")
    assert sizes == [(1, 4), (1, 4)]
