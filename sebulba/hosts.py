"""What crosses hosts over their own network, where each learner mesh is that of one host.

Some TPU slices allow no computation across hosts that leaves out devices. There, one CPU device of
each host takes part in an all-reduce (Gloo), which needs nothing of the accelerators. Where the
learner mesh spans all hosts, what the learners computed is combined already, and nothing is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sebulba.config import ConfigError
from sebulba.topology import Topology

T = TypeVar("T")
Combination = Literal["mean", "sum", "max"]
_REDUCE: dict[Combination, Callable[..., jax.Array]] = {
    "mean": jnp.mean,
    "sum": jnp.sum,
    "max": jnp.max,
}
_HOST_AXIS = "host"


def combine(how: Combination, tree: T, topology: Topology) -> T:
    """The mean, sum or maximum over all hosts of what each has on all of its learner devices.

    Every host calls it in the same order. The result is the same, bit by bit, on all of them.

    Raises:
      ConfigError: JAX was started without its CPU platform.
    """
    if topology.averaging == "devices":
        return tree
    network = _network()
    here = jax.device_put(_local(tree), network.devices[jax.process_index()])
    rows: T = jax.tree.map(functools.partial(_spread, network), _row(here))
    combined: T = _combined(network, how)(rows)
    return from_all(combined, topology)


def to_all(tree: T, topology: Topology) -> T:
    """What is the same on all hosts, as arrays that span them, for a checkpoint of all hosts."""
    if topology.averaging == "devices":
        return tree
    network = _network()
    sharding = NamedSharding(network, PartitionSpec())
    here = jax.device_put(_local(tree), network.devices[jax.process_index()])

    def span(leaf: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, [leaf])

    spanning: T = jax.tree.map(span, here)
    return spanning


def from_all(tree: T, topology: Topology) -> T:
    """What ``to_all`` made, or a checkpoint gave in its place, back on the learner devices."""
    if topology.averaging == "devices":
        return tree
    placed: T = jax.device_put(_local(tree), topology.replicated())
    return placed


@functools.cache
def _network() -> Mesh:
    """The first CPU device of each host."""
    try:
        devices = jax.devices("cpu")
    except RuntimeError as error:
        raise ConfigError(
            "averaging is 'hosts', which needs JAX's CPU platform beside the accelerators': set "
            "JAX_PLATFORMS=tpu,cpu (or cuda,cpu), or leave it unset."
        ) from error
    first = {device.process_index: device for device in reversed(devices)}
    return Mesh(
        np.array([first[process] for process in sorted(first)]),
        (_HOST_AXIS,),
        axis_types=(AxisType.Auto,),
    )


@functools.cache
def _combined(network: Mesh, how: Combination) -> Callable[[T], T]:
    def reduce(tree: T) -> T:
        reduced: T = jax.tree.map(lambda leaf: _REDUCE[how](leaf, axis=0), tree)
        return reduced

    return jax.jit(reduce, out_shardings=NamedSharding(network, PartitionSpec()))


def _local(tree: T) -> T:
    local: T = jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
    return local


@jax.jit
def _row(tree: T) -> T:
    rows: T = jax.tree.map(lambda leaf: leaf[None], tree)
    return rows


def _spread(network: Mesh, row: jax.Array) -> jax.Array:
    shape = (network.size, *row.shape[1:])
    sharding = NamedSharding(network, PartitionSpec(_HOST_AXIS))
    return jax.make_array_from_single_device_arrays(shape, sharding, [row])
