"""What surrounds a run: signals, the watchdog, and what the hosts tell each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from sebulba.config import Config
from sebulba.devices import cluster, distributed
from sebulba.devices.notices import Notices
from sebulba.runtime.interrupt import Interrupt
from sebulba.runtime.watchdog import WRONG_INPUT, Alone, HostError, Hosts, Watchdog, exit_code
from sebulba.validation import ConfigError


class Supervision(NamedTuple):
    """What a run is told by, and what it tells.

    Attributes:
      interrupt: signals to this process.
      watchdog: knows what the threads are doing, and ends a run that stands still.
    """

    interrupt: Interrupt
    watchdog: Watchdog


@contextlib.contextmanager
def supervised(config: Config) -> Iterator[Supervision]:
    """Listen to signals and watch a run inside the context, and tell other hosts if it fails.

    Raises:
      HostError: another host has failed, which is why this one did.
      ConfigError: there are several hosts, which have not been joined.
    """
    cluster.give_up(None)
    with _hosts() as hosts:
        interrupt = Interrupt(lambda: watchdog.end_now())
        # A single host has nothing to save before it trains. Several must agree on when to stop.
        interrupt.raises = distributed.num_hosts() == 1
        watchdog = Watchdog(config.stall_seconds, config.grace_seconds, interrupt, hosts)
        with interrupt.listen(), watchdog.watch():
            try:
                yield Supervision(interrupt, watchdog)
            except distributed.AgreedError:
                raise
            except BaseException as error:
                if distributed.num_hosts() > 1:
                    _share(error, hosts)
                raise


def _share(error: BaseException, hosts: Hosts) -> None:
    """Tell the other hosts of this failure, unless it is a consequence of theirs.

    Raises:
      HostError: it is one.
    """
    code = WRONG_INPUT if isinstance(error, ConfigError) else exit_code(error)
    cluster.give_up(code)
    if isinstance(error, HostError):
        return
    hosts.catch_up()
    if cause := hosts.first_failure():
        cluster.give_up(cause.code)
        raise cause from error
    error.add_note(f"on host {distributed.host()} of {distributed.num_hosts()}")
    hosts.tell_failure(f"{type(error).__name__}: {error}", code)


@contextlib.contextmanager
def _hosts() -> Iterator[Hosts]:
    if distributed.num_hosts() == 1:
        yield Alone()
        return
    client = cluster.client()
    if client is None:
        raise ConfigError(
            f"{distributed.num_hosts()} hosts run this program and have not been joined: call "
            "sebulba.initialize() before anything else uses JAX."
        )
    with Notices(client).open() as notices:
        yield notices
