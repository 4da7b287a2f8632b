"""Several hosts that run one program: agreeing, and gathering numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from sebulba.config import Config, to_json
from sebulba.validation import ConfigError
from sebulba.version import __version__

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "envpool", "libtpu")


def num_hosts() -> int:
    """Processes that run this program together."""
    return int(jax.process_count())


def host() -> int:
    """The number of this process among those that run this program together, from 0."""
    return int(jax.process_index())


def is_primary() -> bool:
    """Whether this host writes the config, the metrics and the terminal."""
    return host() == 0


class AgreedError(ConfigError):
    """All hosts raise it, or know which of them has raised another: none has to be told."""


@contextlib.contextmanager
def refusing_together(before_waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Raise on all hosts what any of them raises inside, so that none is left waiting.

    All hosts must enter it, and must not wait for each other inside. ``before_waiting`` is called
    when this host begins to wait for the others.

    Raises:
      AgreedError: another host raised something; the message names the hosts.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    if before_waiting is not None:
        before_waiting()
    refused = np.flatnonzero(gather(np.array([error is not None])))
    if error is not None:
        raise error
    if refused.size:
        raise AgreedError(
            f"host(s) {refused.tolist()} could not start, so this one, {jax.process_index()}, does "
            "not either: their output says what is wrong. Mend it there, and start all hosts again."
        )


def agree(config: Config, algorithm: str, layout: str, params: str = "") -> None:
    """Check that all hosts have the same config, layout and versions of packages.

    And the same ``params``, which stands for the parameters that ``train`` was given, if any.

    Raises:
      AgreedError: what differs, and on which hosts.
    """
    mine = {**_facts(config, algorithm), "layout": layout, "params": params}
    # Names first: the arrays that ``agree_on`` gathers have one row for each name, and gathering
    # arrays of different sizes would fail or hang.
    agree_on({"the names of the config's fields": sorted(mine)})
    agree_on(mine)


def agree_on(mine: Mapping[str, Any]) -> None:
    """Check that these values are the same on all hosts, which must pass the same names.

    Raises:
      AgreedError: what differs, and on which hosts.
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
            raise AgreedError(
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
