"""Joining the other hosts that run this program, and leaving them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
from jax._src import distributed as jax_distributed

from sebulba.validation import ConfigError

HEARTBEAT_SECONDS = 100
"""A host that sends no heartbeat for so long counts as dead, and the other hosts end."""
_FAILURE_SECONDS = 15
"""How long a process that has failed waits for the others to end with it."""
_LINGER_SECONDS = 2.0
_SAY_SECONDS = 5.0
"""How long a process waits for the others without a word."""
_FOLDER, _THROUGH, _GAVE_UP = "sebulba/leaving", "through", "gave up"
_VISIBLE_DEVICES = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")
_CHOSEN_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_ELSEWHERE = {
    "TPU_WORKER_HOSTNAMES",
    "TPU_PROCESS_ADDRESSES",
    "SLURM_STEP_NODELIST",
    "OMPI_MCA_orte_hnp_uri",
}
"""Environment variables by which JAX finds the other hosts without Kubernetes."""
_gave_up: int | None = None


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
) -> None:
    """Join the other hosts. Call it before anything else uses JAX.

    Without arguments, JAX finds the other hosts by itself on Cloud TPU slices and under SLURM and
    Open MPI. If it finds none, this process runs alone.

    Args:
      coordinator: HOST:PORT of process 0.
      num_processes: number of processes, one on each host.
      process_id: the number of this process, from 0.
      heartbeat_seconds: a process that is not heard of for so long counts as dead, and the others
        end. The same on all hosts.

    Raises:
      ConfigError: only some of the arguments are given, or they are out of range; or JAX is in use
        already, although this process is one of several.
    """
    _check(coordinator, num_processes, process_id, heartbeat_seconds)
    alone = coordinator is None
    if alone and jax.distributed.is_initialized():
        return
    # Its notifier would take SIGTERM from ``train``, which agrees on a turn itself.
    jax.config.update("jax_enable_preemption_service", False)
    # Under SLURM and Open MPI, JAX restricts each task to the one GPU whose number is the task's on
    # its node. Where that is wrong, the task gets back all that it sees.
    kept = _VISIBLE_DEVICES if _keeps_its_devices(os.environ) else ()
    before = {name: jax.config.values[name] for name in kept}
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if _is_lone_pod(os.environ, alone) else None,
            heartbeat_timeout_seconds=heartbeat_seconds,
            # All that are through have waited in ``leave`` before that; so nobody waits for long.
            shutdown_timeout_seconds=_FAILURE_SECONDS,
        )
    except ValueError:
        # JAX found no cluster. Any other error, such as a coordinator that does not answer, is
        # raised.
        if not alone:
            raise
    except RuntimeError as error:
        if not alone or "must be called before" not in str(error):
            raise
        _check_alone(os.environ)
    for name, value in before.items():
        jax.config.update(name, value)
    if jax.distributed.is_initialized():
        # JAX's own farewell, which ends those that come late, was registered first and comes last.
        atexit.register(_end)


def give_up(code: int | None) -> None:
    """End this process with ``code`` without waiting for the other hosts: the run has failed.

    None takes it back: another run has begun.
    """
    global _gave_up
    _gave_up = code


def client() -> Any:
    """JAX's client of the coordinator; None if this process has not joined others."""
    return jax_distributed.global_state.client


def _end() -> None:
    """Leave the other hosts at the end of the process."""
    # What the interpreter keeps of an exception that nothing has caught. All hosts stop together.
    uncaught = getattr(sys, "last_value", None)
    broken = uncaught is not None and not isinstance(uncaught, KeyboardInterrupt)
    failed = broken or _gave_up is not None
    leave(failed)
    if failed:
        # The end of JAX's runtime would wait for collective operations that no host answers.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(1 if _gave_up is None else _gave_up)


def leave(failed: bool) -> None:
    """Wait for the other hosts, so that all of them end together.

    Without it, JAX would end by a signal those that need more than a moment longer than the first:
    to write a replay, or to evaluate what was trained. Ctrl-C ends the wait.

    Args:
      failed: wait for a moment only, since others may be dead or stand still.
    """
    coordinator = client()
    if coordinator is None:
        return
    if _all_left(coordinator, failed):
        return
    # JAX's own end would wait again for all, and then abort this process.
    for thing in (coordinator, jax_distributed.global_state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # Or its destructor would.
    jax_distributed.global_state.client = None
    jax_distributed.global_state.service = None
    if jax.process_index() == 0:
        # The others are ended by a signal if the coordinator is gone before they are.
        time.sleep(_LINGER_SECONDS)


def _all_left(coordinator: Any, failed: bool) -> bool:
    """Wait until all hosts leave; returns whether they do, and none of them because it failed."""
    # Not at a barrier of JAX: the first to come sets its time limit for all, and no signal ends it.
    said, pause, start = False, 0.02, time.monotonic()
    failed_at = start if failed else None
    with contextlib.suppress(jax.errors.JaxRuntimeError, KeyboardInterrupt):
        me = f"{_FOLDER}/{jax.process_index()}"
        coordinator.key_value_set(me, _GAVE_UP if failed else _THROUGH, True)
        while True:
            found = [how for _, how in coordinator.key_value_dir_get(_FOLDER)]
            if len(found) == jax.process_count():
                return _GAVE_UP not in found
            now = time.monotonic()
            if _GAVE_UP in found and failed_at is None:
                failed_at = now
            if failed_at is not None and now - failed_at > _FAILURE_SECONDS:
                return False
            if now - start > _SAY_SECONDS and not said:
                said = True
                print("sebulba: waiting for the other hosts to end", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(1.0, 1.5 * pause)
    return False


def _check(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    heartbeat_seconds: int,
) -> None:
    given = [value is not None for value in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise ConfigError(
            f"coordinator is {coordinator}, num_processes is {num_processes} and process_id is "
            f"{process_id}: give all three or none. Set --coordinator HOST:PORT --num-processes N "
            "--process-id I."
        )
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        raise ConfigError(
            f"process_id is {process_id}: it must be from 0 to num_processes - 1 "
            f"({num_processes - 1}). Set --process-id."
        )
    if heartbeat_seconds < 1:
        raise ConfigError(
            f"heartbeat_seconds is {heartbeat_seconds}: it must be at least 1. Set "
            "--heartbeat-seconds."
        )


def _check_alone(environment: Mapping[str, str]) -> None:
    """Refuse to go on alone where this process is one of several, which would train apart."""
    where, number = _num_processes(environment)
    if number > 1:
        raise ConfigError(
            f"JAX was used before initialize, and {where} runs {number} processes of this program: "
            "each would train alone and write the same files. Call sebulba.initialize() before "
            "anything else uses JAX; to train apart on purpose, do not call it."
        )


def _num_processes(environment: Mapping[str, str]) -> tuple[str, int]:
    """Who has started this process, and how many of them."""
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return "Open MPI", int(environment["OMPI_COMM_WORLD_SIZE"])
    # Without a step, this is the script of a batch job and not one of its tasks.
    if "SLURM_STEP_NODELIST" in environment:
        return "SLURM", int(environment.get("SLURM_NTASKS", "1"))
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"):
        if name in environment:
            return "the TPU slice", len(environment[name].split(","))
    return "the accelerators' runtime", jax.process_count()


def _is_lone_pod(environment: Mapping[str, str], alone: bool) -> bool:
    """Whether JAX's search for hosts would ask Kubernetes in vain, so that it must be turned off.

    Unless other variables name the hosts, JAX asks Kubernetes for the indexed job that this pod
    belongs to. That fails outside of such a job, and is not needed if all arguments are given.
    """
    if "KUBERNETES_SERVICE_HOST" not in environment or _ELSEWHERE & set(environment):
        return False
    return not alone or "JOB_COMPLETION_INDEX" not in environment


def _keeps_its_devices(environment: Mapping[str, str]) -> bool:
    """Whether this task must not be restricted to the GPU with its number on the node."""
    # The user has chosen devices, and JAX takes exactly these.
    if "JAX_LOCAL_DEVICE_IDS" in environment:
        return False
    # The task sees one GPU, whose number is then 0, whatever the number of the task.
    visible = [environment[name] for name in _CHOSEN_DEVICES if name in environment]
    if any(len(devices.split(",")) == 1 for devices in visible):
        return True
    return _is_only_task(environment)


def _is_only_task(environment: Mapping[str, str]) -> bool:
    """Whether SLURM or Open MPI runs no other task of this program on this node."""
    # Before SLURM's variables: inside a SLURM job, mpirun starts one helper on each node as a SLURM
    # task, and the processes that it starts there inherit the helper's variables.
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:
        return environment["OMPI_COMM_WORLD_LOCAL_SIZE"] == "1"
    tasks = environment.get("SLURM_NTASKS")
    return tasks is not None and tasks == environment.get("SLURM_STEP_NUM_NODES")
