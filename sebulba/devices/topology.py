"""Which devices of each host act and which learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sebulba.validation import ConfigError

LEARNER_AXIS = "learner"
"""Name of the one axis of the learner mesh."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The roles of the devices.

    Attributes:
      inference: this host's devices that act.
      learners: this host's devices that learn.
      mesh: the learner devices of all hosts, one axis named ``learner``.
      layout: the roles on every host, in the notation of Huang et al. (2023), "Cleanba". In
        ``a0-l1,2,3`` device 0 acts and devices 1 to 3 learn; in ``a0,1-l0,1`` both do both.
      num_hosts: number of hosts.
    """

    inference: tuple[jax.Device, ...]
    learners: tuple[jax.Device, ...]
    mesh: Mesh
    layout: str
    num_hosts: int

    @classmethod
    def split(
        cls,
        num_inference: int | None = None,
        devices: Sequence[jax.Device] | None = None,
        fits: Callable[[int], bool] = lambda num_learners: True,
    ) -> Topology:
        """Split the devices of every host in the same way.

        Args:
          num_inference: devices of each host that act; the others learn. None takes a quarter
            of them, at least one, or the next larger number for which ``fits`` accepts the number
            of learners. A host with one device shares it between both roles.
          devices: devices of all hosts; None takes ``jax.devices()``.
          fits: whether the batch divides over a number of learner devices of a host.

        Raises:
          ConfigError: the hosts have too few devices, or different numbers of them.
        """
        hosts = _by_host(jax.devices() if devices is None else devices)
        per_host = len(hosts[jax.process_index()])
        if num_inference is None:
            num_inference = _default(per_host, fits)
        _check(num_inference, per_host)
        if per_host == 1:
            return cls._of(hosts, range(1), range(1))
        return cls._of(hosts, range(num_inference), range(num_inference, per_host))

    @classmethod
    def shared(cls, devices: Sequence[jax.Device] | None = None) -> Topology:
        """Every device of every host both acts and learns.

        Args:
          devices: devices of all hosts; None takes ``jax.devices()``.

        Raises:
          ConfigError: the hosts have different numbers of devices.
        """
        hosts = _by_host(jax.devices() if devices is None else devices)
        everyone = range(len(hosts[jax.process_index()]))
        return cls._of(hosts, everyone, everyone)

    @classmethod
    def _of(cls, hosts: list[list[jax.Device]], acting: range, learning: range) -> Topology:
        local = hosts[jax.process_index()]
        return cls(
            inference=tuple(local[i] for i in acting),
            learners=tuple(local[i] for i in learning),
            # In the same order on every host, since all of them run one program on this mesh.
            mesh=Mesh(
                np.array([host[i] for host in hosts for i in learning]),
                (LEARNER_AXIS,),
                # The compiler chooses shardings outside of ``shard_map``. With explicit axes they
                # would be part of every array's type.
                axis_types=(AxisType.Auto,),
            ),
            layout=f"a{','.join(map(str, acting))}-l{','.join(map(str, learning))}",
            num_hosts=len(hosts),
        )

    @property
    def is_shared(self) -> bool:
        """Whether every device both acts and learns."""
        return self.inference == self.learners

    def replicated(self) -> NamedSharding:
        """The sharding of an array with a copy on every device of ``mesh``."""
        return NamedSharding(self.mesh, PartitionSpec())

    def __str__(self) -> str:
        kind = self.mesh.devices.flat[0].device_kind
        hosts = f"{self.num_hosts} host{'s' if self.num_hosts > 1 else ''}"
        return f"{self.layout} ({hosts}, {kind}; a acts, l learns)"


def _by_host(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    # Sorted by id, so that the result does not depend on the order in which devices are given.
    hosts: dict[int, list[jax.Device]] = {}
    for device in sorted(devices, key=lambda device: device.id):
        hosts.setdefault(device.process_index, []).append(device)
    counts = {process: len(host) for process, host in sorted(hosts.items())}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"hosts have different numbers of devices ({counts}): every host must have the same "
            "number. Start the program on equal hosts."
        )
    return [hosts[process] for process in sorted(hosts)]


def _default(per_host: int, fits: Callable[[int], bool]) -> int:
    quarter = max(1, per_host // 4)
    # With no number that fits, a quarter: the batch is then refused with its own message.
    return next((n for n in range(quarter, per_host) if fits(per_host - n)), quarter)


def _check(num_inference: int, per_host: int) -> None:
    most = max(1, per_host - 1)
    if not 1 <= num_inference <= most:
        raise ConfigError(
            f"num_inference_devices is {num_inference}, but each host has {per_host} "
            f"device{'s' if per_host > 1 else ''}: it must be from 1 to {most}, so that at least "
            "one device learns. Ask for fewer, or start with more devices (on CPU: "
            "XLA_FLAGS=--xla_force_host_platform_device_count=N)."
        )
