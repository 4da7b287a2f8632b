"""Joining other hosts, and what must not be taken for being alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import pytest

from sebulba import ConfigError
from sebulba.devices import cluster

GPUS = "jax_cuda_visible_devices"
SLURM = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "4"}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], str]]:
    """Initializes in an environment; returns what JAX was given, and the GPUs it then sees."""

    def start(
        environment: Mapping[str, str], *words: Any, **options: Any
    ) -> tuple[dict[str, Any], str]:
        given: dict[str, Any] = {}

        def initialize(*_: Any, **options: Any) -> None:
            given.update(options)
            # As JAX does under SLURM and Open MPI: one GPU for each task.
            jax.config.update(GPUS, "0")

        monkeypatch.setattr(jax.distributed, "initialize", initialize)
        monkeypatch.setattr(cluster.os, "environ", dict(environment))
        before = jax.config.values[GPUS]
        try:
            cluster.initialize(*words, **options)
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


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        # Each task sees one GPU, whose number is 0 whatever the task's is.
        ({**SLURM, "SLURM_NTASKS": "32", "CUDA_VISIBLE_DEVICES": "3"}, "all"),
        ({**SLURM, "SLURM_NTASKS": "32", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "0"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "ROCR_VISIBLE_DEVICES": "5"}, "all"),
    ],
)
def test_a_task_that_sees_one_gpu_uses_it(
    environment: dict[str, str], seen: str, start: Any
) -> None:
    assert start(environment)[1] == seen


TASKS = {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_NTASKS": "2"}


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        (TASKS, "SLURM runs 2"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI runs 4"),
        ({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}, "the TPU slice runs 2"),
    ],
)
def test_one_of_several_processes_does_not_go_on_alone(
    environment: dict[str, str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.devices()  # Uses JAX, which then refuses to join others.
    monkeypatch.setattr(cluster.os, "environ", environment)
    with pytest.raises(ConfigError, match=rf"used before initialize, and {where} processes"):
        cluster.initialize()


@pytest.mark.parametrize("environment", [{}, {"SLURM_NTASKS": "2"}, {**TASKS, "SLURM_NTASKS": "1"}])
def test_a_process_of_its_own_goes_on_where_jax_is_in_use(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.devices()
    monkeypatch.setattr(cluster.os, "environ", environment)
    cluster.initialize()
    assert cluster.client() is None


def test_the_heartbeat_can_be_set(start: Any) -> None:
    assert start({})[0]["heartbeat_timeout_seconds"] == 100
    given: dict[str, Any] = start({}, heartbeat_seconds=40)[0]
    assert given["heartbeat_timeout_seconds"] == 40
    with pytest.raises(ConfigError, match="heartbeat_seconds is 0: it must be at least 1"):
        cluster.initialize(heartbeat_seconds=0)
