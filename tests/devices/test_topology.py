"""Which devices act and which learn, for every number of devices."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from jax.sharding import AxisType, PartitionSpec

from sebulba import ConfigError
from sebulba.devices.topology import LEARNER_AXIS, Topology


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What Topology asks of a device, for hosts that this machine does not have."""

    id: int
    process_index: int
    device_kind: str = "stand-in"


def hosts(*counts: int) -> list[StandIn]:
    """Devices of several hosts, whose ids alternate between the hosts."""
    pairs = [(i, host) for host, count in enumerate(counts) for i in range(count)]
    return [StandIn(number, host) for number, (_, host) in enumerate(sorted(pairs))]


@pytest.mark.parametrize(
    ("count", "num_inference", "layout"),
    [
        (1, None, "a0-l0"),
        (1, 1, "a0-l0"),
        (2, None, "a0-l1"),
        (4, None, "a0-l1,2,3"),
        (4, 3, "a0,1,2-l3"),
        (8, None, "a0,1-l2,3,4,5,6,7"),
        (8, 4, "a0,1,2,3-l4,5,6,7"),
    ],
)
def test_one_host(count: int, num_inference: int | None, layout: str) -> None:
    devices = jax.devices()[:count]
    topology = Topology.split(num_inference, devices)
    acting, learning = (part[1:].split(",") for part in layout.split("-"))
    assert topology.layout == layout
    assert topology.inference == tuple(devices[int(i)] for i in acting)
    assert topology.learners == tuple(devices[int(i)] for i in learning)
    assert tuple(topology.mesh.devices) == topology.learners
    assert topology.num_hosts == 1
    assert str(topology) == f"{layout} (1 host, cpu; a acts, l learns)"


def test_all_devices_without_an_argument() -> None:
    topology = Topology.split()
    assert (*topology.inference, *topology.learners) == tuple(jax.devices())


def test_mesh_is_one_auto_axis() -> None:
    topology = Topology.split(1, jax.devices()[:4])
    assert topology.mesh.axis_names == (LEARNER_AXIS,)
    assert topology.mesh.axis_types == (AxisType.Auto,)
    assert topology.mesh.size == 3
    assert topology.replicated().spec == PartitionSpec()
    assert topology.replicated().mesh == topology.mesh


def test_learners_of_all_hosts_are_in_the_mesh_and_only_ours_are_ours() -> None:
    devices = hosts(4, 4)
    topology = Topology.split(1, devices)
    ours = [device for device in devices if device.process_index == 0]
    theirs = [device for device in devices if device.process_index == 1]
    assert topology.inference == (ours[0],)
    assert topology.learners == tuple(ours[1:])
    assert list(topology.mesh.devices) == ours[1:] + theirs[1:]
    assert (topology.mesh.size, topology.num_hosts) == (6, 2)
    assert str(topology) == "a0-l1,2,3 (2 hosts, stand-in; a acts, l learns)"


def test_hosts_must_be_equal() -> None:
    with pytest.raises(ConfigError, match=r"\{0: 2, 1: 3\}.*equal hosts"):
        Topology.split(1, hosts(2, 3))


@pytest.mark.parametrize(
    ("count", "num_inference", "most"), [(1, 2, 1), (2, 2, 1), (4, 4, 3), (4, 0, 3), (4, -1, 3)]
)
def test_an_impossible_split_names_its_numbers(count: int, num_inference: int, most: int) -> None:
    with pytest.raises(ConfigError) as error:
        Topology.split(num_inference, jax.devices()[:count])
    message = str(error.value)
    plural = "s" if count > 1 else ""
    assert (
        f"num_inference_devices is {num_inference}, but each host has {count} device{plural}:"
        in message
    )
    assert f"from 1 to {most}" in message and "Ask for fewer" in message


@pytest.mark.parametrize(
    ("num_devices", "batch", "layout"),
    [(1, 16, "a0-l0"), (2, 16, "a0-l1"), (4, 16, "a0,1-l2,3"), (4, 24, "a0-l1,2,3")],
)
def test_the_default_leaves_learners_that_divide_the_batch(
    num_devices: int, batch: int, layout: str
) -> None:
    devices = jax.devices()[:num_devices]
    topology = Topology.split(devices=devices, fits=lambda learners: batch % learners == 0)
    assert topology.layout == layout
