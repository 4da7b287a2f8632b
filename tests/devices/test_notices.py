"""What hosts tell each other."""

from __future__ import annotations

import json
import threading

import pytest

from sebulba.devices import notices
from sebulba.devices.notices import Notices


class SlowClient:
    """A coordinator whose answers take a moment, and hold what was told when it was asked."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []
        self.asked = threading.Event()

    def key_value_set(self, *_: object) -> None:
        pass

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        answer = list(self.failed)
        self.asked.set()
        threading.Event().wait(0.1)
        return answer


def test_all_that_was_told_before_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if this host asks in the middle of an exchange that has read what was there before."""
    monkeypatch.setattr(notices, "_EVERY_SECONDS", 0.01)
    client = SlowClient()
    with Notices(client).open() as told:
        for host in (7, 3):
            client.asked.clear()
            assert client.asked.wait(10)
            client.failed.append((f"failed/{host}", json.dumps([f"broke on {host}", 1])))
            told.catch_up()
            failure = told.first_failure()
            # The first that was heard, and not the one of the lowest number.
            assert failure is not None and "host 7 has ended" in str(failure)
