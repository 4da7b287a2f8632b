"""Several hosts that run one program: joining, agreeing, and gathering numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from sebulba.config import Config, to_json
from sebulba.validation import ConfigError
from sebulba.version import __version__

HEARTBEAT_SECONDS = 10
"""A host that sends no heartbeat for so long counts as dead, and the other hosts end."""
_VISIBLE_DEVICES = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")
_ELSEWHERE = {
    "TPU_WORKER_HOSTNAMES",
    "TPU_PROCESS_ADDRESSES",
    "SLURM_STEP_NODELIST",
    "OMPI_MCA_orte_hnp_uri",
}
"""Environment variables by which JAX finds the other hosts without Kubernetes."""
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "envpool", "libtpu")


def initialize(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Join the other hosts. Call it before anything else uses JAX.

    Without arguments, JAX finds the other hosts by itself on Cloud TPU slices and under SLURM and
    Open MPI. If it finds none, this process runs alone.

    Args:
      coordinator: HOST:PORT of process 0.
      num_processes: number of processes, one on each host.
      process_id: the number of this process, from 0.

    Raises:
      ConfigError: only some of the arguments are given, or they are out of range.
    """
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
    # Under SLURM and Open MPI, JAX restricts each task to the one GPU whose number is the task's on
    # its node. A task that is alone on its node gets all of its GPUs back below.
    kept = _VISIBLE_DEVICES if _is_only_task(os.environ) else ()
    before = {name: jax.config.values[name] for name in kept}
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if _is_lone_pod(os.environ, given) else None,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            # At its end, each host waits this long for the others; five minutes by default, which
            # a host would spend waiting for one that has failed.
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        # JAX found no cluster (ValueError), or is in use already, as in a notebook: this process is
        # alone. Any other error, such as a coordinator that does not answer, is raised.
        alone = isinstance(error, ValueError) or "must be called before" in str(error)
        if any(given) or not alone:
            raise
    for name, value in before.items():
        jax.config.update(name, value)


def _is_lone_pod(environment: Mapping[str, str], given: Sequence[bool]) -> bool:
    """Whether JAX's search for hosts would ask Kubernetes in vain, so that it must be turned off.

    Unless other variables name the hosts, JAX asks Kubernetes for the indexed job that this pod
    belongs to. That fails outside of such a job, and is not needed if all arguments are given.
    """
    if "KUBERNETES_SERVICE_HOST" not in environment or _ELSEWHERE & set(environment):
        return False
    return all(given) or "JOB_COMPLETION_INDEX" not in environment


def _is_only_task(environment: Mapping[str, str]) -> bool:
    """Whether SLURM or Open MPI runs no other task of this program on this node."""
    # The user has chosen devices, and JAX takes exactly these.
    if "JAX_LOCAL_DEVICE_IDS" in environment:
        return False
    # Before SLURM's variables: inside a SLURM job, mpirun starts one helper on each node as a SLURM
    # task, and the processes that it starts there inherit the helper's variables.
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:
        return environment["OMPI_COMM_WORLD_LOCAL_SIZE"] == "1"
    tasks = environment.get("SLURM_NTASKS")
    return tasks is not None and tasks == environment.get("SLURM_STEP_NUM_NODES")


def num_hosts() -> int:
    """Processes that run this program together."""
    return int(jax.process_count())


def is_primary() -> bool:
    """Whether this host writes the config, the metrics and the terminal."""
    return jax.process_index() == 0


@contextlib.contextmanager
def naming_the_host() -> Iterator[None]:
    """Add a note to an exception that says which of several hosts raised it."""
    try:
        yield
    except Exception as error:
        if num_hosts() > 1:
            error.add_note(f"on host {jax.process_index()} of {num_hosts()}")
        raise


def agree(config: Config, algorithm: str, layout: str) -> None:
    """Check that all hosts have the same config, layout and versions of packages.

    Raises:
      ConfigError: what differs, and on which hosts.
    """
    mine = {**_facts(config, algorithm), "layout": layout}
    # Names first: the arrays that ``agree_on`` gathers have one row for each name, and gathering
    # arrays of different sizes would fail or hang.
    agree_on({"the names of the config's fields": sorted(mine)})
    agree_on(mine)


def agree_on(mine: Mapping[str, Any]) -> None:
    """Check that these values are the same on all hosts, which must pass the same names.

    Raises:
      ConfigError: what differs, and on which hosts.
    """
    # Values of any size and type become digests of one size, which can be gathered as an array.
    everywhere = gather(np.stack([_digest(value) for value in mine.values()]))
    for number, (name, value) in enumerate(mine.items()):
        different = [
            host
            for host in range(len(everywhere))
            if (everywhere[host, number] != everywhere[0, number]).any()
        ]
        if different:
            raise ConfigError(
                f"{name} is not the same on all hosts: host(s) {different} differ from host 0 "
                f"(on this host, {jax.process_index()}, it is {value}). Start every host with the "
                "same command, versions and run directory."
            )


def _facts(config: Config, algorithm: str) -> dict[str, Any]:
    fields = json.loads(to_json(config, algorithm))
    versions = {f"version of {name}": _version(name) for name in _PACKAGES}
    versions["version of sebulba"] = __version__
    return {**fields, **versions, "devices per host": jax.local_device_count()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _digest(value: Any) -> np.ndarray:
    text = json.dumps(value, sort_keys=True).encode()
    # int32, since JAX truncates 64-bit integers to 32 bits by default.
    return np.frombuffer(hashlib.sha256(text).digest()[:16], np.int32)


def gather(numbers: np.ndarray) -> np.ndarray:
    """The arrays of all hosts, ``[hosts, ...]``.

    All hosts must call it equally often, in the same order, with arrays of one shape: it waits for
    all of them.
    """
    if jax.process_count() == 1:
        return numbers[None]
    return np.asarray(multihost_utils.process_allgather(numbers))
