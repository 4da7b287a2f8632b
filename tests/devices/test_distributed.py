"""Joining other hosts, and refusing those that run something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from sebulba import ConfigError, presets
from sebulba.devices import distributed

GPUS = "jax_cuda_visible_devices"
SLURM = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "4"}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], str]]:
    """Initializes in an environment; returns what JAX was given, and the GPUs it then sees."""

    def start(environment: Mapping[str, str], *words: Any) -> tuple[dict[str, Any], str]:
        given: dict[str, Any] = {}

        def initialize(*_: Any, **options: Any) -> None:
            given.update(options)
            # As JAX does under SLURM and Open MPI: one GPU for each task.
            jax.config.update(GPUS, "0")

        monkeypatch.setattr(jax.distributed, "initialize", initialize)
        monkeypatch.setattr(distributed.os, "environ", dict(environment))
        before = jax.config.values[GPUS]
        try:
            distributed.initialize(*words)
            return given, jax.config.values[GPUS]
        finally:
            jax.config.update(GPUS, before)

    return start


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        (SLURM, "all"),
        ({**SLURM, "SLURM_NTASKS": "32"}, "0"),
        ({**SLURM, "JAX_LOCAL_DEVICE_IDS": "0"}, "0"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "all"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "0"),
        ({**SLURM, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "0"),
    ],
)
def test_the_only_task_of_a_node_sees_all_of_its_gpus(
    environment: dict[str, str], seen: str, start: Any
) -> None:
    assert start(environment)[1] == seen


def test_jax_looks_for_hosts_only_where_there_may_be_some(start: Any) -> None:
    def method(environment: Mapping[str, str], *words: Any) -> str | None:
        found: str | None = start(environment, *words)[0]["cluster_detection_method"]
        return found

    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert method({}) is None
    assert method(pod) == "deactivate"
    job = {**pod, "JOB_COMPLETION_INDEX": "0"}
    assert method(job) is None
    assert method(job, "localhost:1234", 2, 0) == "deactivate"
    # It gives tasks that share a node a GPU each.
    assert method(SLURM, "localhost:1234", 2, 0) is None
    for name in ("TPU_WORKER_HOSTNAMES", "SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri"):
        assert method({**pod, name: "here"}) is None


def hosts(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """A second host, which gathers something else."""
    monkeypatch.setattr(distributed, "gather", lambda mine: np.stack([mine, change(mine.copy())]))


def test_equal_hosts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts(monkeypatch, lambda mine: mine)
    distributed.agree(presets.get("vtrace-catch"), "vtrace", "a0-l1")


def test_what_differs_between_hosts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.get("vtrace-catch")
    order = list({**distributed._facts(config, "vtrace"), "layout": ""})
    assert {"seed", "version of jax", "version of libtpu", "layout"} <= set(order)
    for name in ("algorithm", "seed", "version of jax", "layout"):

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
