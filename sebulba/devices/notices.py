"""What hosts tell each other through JAX's coordinator, which works while their devices wait."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import jax

from sebulba.devices import cluster
from sebulba.runtime.attempt import attempt
from sebulba.runtime.watchdog import HostError

_EVERY_SECONDS = 1.0
_TELL_SECONDS = 2.0
"""How long this host may take to tell the others that it has failed."""
_runs = itertools.count()


class Notices:
    """The ``Hosts`` of a run on several hosts: each tells every second, and hears of failures.

    It has a thread of its own, because the coordinator may not answer.
    """

    def __init__(self, client: Any) -> None:
        """``client`` is JAX's client of the coordinator."""
        self._client = client
        self._me = jax.process_index()
        # All hosts count alike, since they make the same calls.
        self._folder = f"sebulba/run-{next(_runs)}"
        self._text = ""
        self._heard: dict[int, str] = {}
        self._failures: dict[int, tuple[str, int]] = {}
        self._ended = False
        self._curious = False
        self._hurry = threading.Event()
        self._begun = self._done = 0  # Exchanges with the coordinator.
        self._one_done = threading.Condition()

    @contextlib.contextmanager
    def open(self) -> Iterator[Notices]:
        """Tell and hear inside the context; a failure in it is told to the other hosts."""
        thread = threading.Thread(target=self._exchange_forever, name="notices", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended = True
            self._hurry.set()
            thread.join(_TELL_SECONDS)

    def tell(self, text: str) -> None:
        """Replace what this host says of itself."""
        self._text = text

    def heard(self) -> dict[int, str]:
        """What the other hosts last said of themselves."""
        # Only on demand: every host that read what all say every second would be too much for the
        # coordinator of hundreds.
        self._curious = True
        self.catch_up()
        return self._heard

    def first_failure(self) -> HostError | None:
        """The first other host that was heard to have failed, if any."""
        for host, (text, code) in self._failures.items():
            return HostError(f"host {host} has ended, so this one ends too: {text}", code)
        return None

    def catch_up(self) -> None:
        """Wait until all that the others have told by now is heard, if the coordinator answers."""
        # One that has begun already may have read what there was before.
        next_one = self._begun + 1
        self._hurry.set()
        with self._one_done:
            self._one_done.wait_for(lambda: self._done >= next_one, _TELL_SECONDS)

    def tell_failure(self, text: str, code: int) -> None:
        """Tell the others that this host has failed."""
        attempt(lambda: self._put("failed", json.dumps([text, code])), _TELL_SECONDS)

    def leave(self) -> None:
        """Give them time to end together with this process, which has failed."""
        cluster.leave(failed=True)

    def _exchange_forever(self) -> None:
        while not self._ended:
            self._hurry.wait(_EVERY_SECONDS)
            self._hurry.clear()
            self._begun += 1
            self._put("says", self._text)
            if self._curious:
                self._heard = dict(self._get("says"))
            for host, text in self._get("failed"):
                self._failures.setdefault(host, json.loads(text))
            with self._one_done:
                self._done = self._begun
                self._one_done.notify_all()

    def _put(self, kind: str, text: str) -> None:
        # The coordinator is gone if host 0 is; JAX ends this process then.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"{self._folder}/{kind}/{self._me}", text, True)

    def _get(self, kind: str) -> list[tuple[int, str]]:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            found = self._client.key_value_dir_get(f"{self._folder}/{kind}")
            said = [(int(key.rsplit("/", 1)[1]), text) for key, text in found]
            return [(host, text) for host, text in said if host != self._me]
        return []
