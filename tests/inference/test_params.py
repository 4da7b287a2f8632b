"""The slot hands out versions that are ready, the right ones, and its own copies."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.inference import params as params_module
from sebulba.inference.params import ParamsSlot
from sebulba.runtime.queues import ShutDown


class Call:
    """A call in another thread, and what came of it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.outcome: object = None
        self._function = function
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def waits(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def result(self) -> object:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._function()
        except Exception as error:
            self.outcome = type(error)


@pytest.fixture
def slot() -> ParamsSlot:
    return ParamsSlot(jax.devices()[0])


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The versions whose copies have arrived, which a real copy would decide by its speed."""
    versions: set[int] = set()
    monkeypatch.setattr(params_module, "_is_ready", lambda v: v.version in versions)
    return versions


def publish(slot: ParamsSlot, *versions: int) -> None:
    for version in versions:
        slot.publish(version, {"w": jnp.full(3, version)}, version / 10)


def test_newest_is_the_newest_that_has_arrived(slot: ParamsSlot, arrived: set[int]) -> None:
    publish(slot, 0, 1, 2)
    assert slot.newest().version == 0
    arrived |= {0, 1}
    assert slot.newest().version == 1
    arrived.add(2)
    assert slot.newest().version == 2
    np.testing.assert_array_equal(slot.newest().params["w"], [2, 2, 2])


def test_what_has_arrived_is_kept_until_something_newer_has(
    slot: ParamsSlot, arrived: set[int]
) -> None:
    arrived.add(0)
    publish(slot, 0, 1, 2, 3, 4)
    assert slot.newest().version == 0
    arrived |= {1, 2, 3, 4}
    publish(slot, 5)
    assert slot.newest().version == 4


def test_the_two_newest_are_kept_and_older_ones_are_not(slot: ParamsSlot) -> None:
    for version in range(4):
        publish(slot, version)
        jax.block_until_ready(slot.exactly(version).params)
    publish(slot, 4)
    assert [slot.exactly(version).version for version in (3, 4)] == [3, 4]
    with pytest.raises(LookupError, match=r"version 2 .* holds \[3, 4\]"):
        slot.exactly(2)


def test_exactly_waits_for_its_version(slot: ParamsSlot) -> None:
    publish(slot, 0)
    call = Call(lambda: slot.exactly(2).version)
    assert call.waits()
    publish(slot, 1)
    assert call.waits()
    publish(slot, 2)
    assert call.result() == 2


def test_exactly_does_not_wait_for_the_copy(slot: ParamsSlot, arrived: set[int]) -> None:
    publish(slot, 0, 1)
    assert slot.exactly(1).version == 1


def test_newest_waits_for_the_first(slot: ParamsSlot) -> None:
    call = Call(lambda: slot.newest().version)
    assert call.waits()
    publish(slot, 7)
    assert call.result() == 7


def test_shutdown_wakes_every_waiting_call_and_refuses_later_ones(slot: ParamsSlot) -> None:
    calls = [Call(slot.newest), Call(lambda: slot.exactly(3))]
    assert all(call.waits() for call in calls)
    slot.shutdown()
    assert [call.result() for call in calls] == [ShutDown, ShutDown]
    with pytest.raises(ShutDown):
        slot.newest()
    with pytest.raises(ShutDown):
        slot.exactly(0)


@pytest.mark.parametrize("source", [0, 1])
def test_a_copy_survives_the_donation_of_its_source(slot: ParamsSlot, source: int) -> None:
    params = jax.device_put({"w": jnp.arange(1000.0)}, jax.devices()[source])
    before = np.array(params["w"])
    slot.publish(0, params, 0.0)
    update = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf - 7, params), donate_argnums=0)
    jax.block_until_ready(update(params))
    assert params["w"].is_deleted()
    copy = slot.newest().params["w"]
    assert copy.devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(copy, before)
