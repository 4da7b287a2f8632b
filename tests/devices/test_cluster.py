"""Joining other hosts, and what must not be taken for being alone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import pytest
from whole_runs import tiny

from sebulba import ConfigError
from sebulba.devices import cluster
from sebulba.runners.supervision import supervised

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


class Coordinator:
    """What JAX's coordinator keeps; ``others`` are the notes that it gets from another host."""

    def __init__(self, others: list[str]) -> None:
        self._notes: dict[str, str] = {}
        self._others = others

    def key_value_set(self, key: str, text: str, _replace: bool) -> None:
        self._notes[key] = text

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        if self._others:
            self._notes[f"{folder}/1"] = self._others.pop(0)
        return [item for item in self._notes.items() if item[0].startswith(folder)]


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(cluster, "_FAILURE_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("others", "failed", "all_well"),
    [
        (["through"], False, True),
        (["gave up"], False, False),
        (["through"], True, False),
        ([], True, False),  # The other one never comes.
    ],
)
def test_hosts_leave_together(
    two_hosts: None, others: list[str], failed: bool, all_well: bool
) -> None:
    assert cluster._all_left(Coordinator(others), failed) == all_well


def test_ctrl_c_ends_the_wait_for_other_hosts(
    two_hosts: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_SAY_SECONDS", 0.05)
    interrupt = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    assert not cluster._all_left(Coordinator([]), failed=False)
    assert capfd.readouterr().err == "sebulba: waiting for the other hosts to end\n"


def test_a_run_that_follows_a_failed_one_ends_well() -> None:
    cluster.give_up(5)
    with supervised(tiny()):
        pass
    assert cluster._gave_up is None
