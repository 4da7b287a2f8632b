"""How env-hosts and actors end: with the run, or where there is no trainer any more."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from remote_parts import STAY, Slow, env_host, env_of, trainer, until

from sebulba import envs
from sebulba.remote import listener as listeners
from sebulba.runtime.queues import ShutDown
from sebulba.runtime.watchdog import StallError
from sebulba.types import Env, EnvsLost, MakeEnv


def test_a_run_that_is_complete_ends_its_env_hosts() -> None:
    with trainer(lanes=2) as (listener, address), env_host(address, lanes=2) as host:
        lanes = [env_of(listener, lane) for lane in range(2)]
        for env in lanes:
            env.reset()
        lives = [lane.life for lane in listener._lanes.values()]
        assert len({life.peer for life in lives if life}) == 2, "each has a connection of its own"
        for env in lanes:
            env.close()
        listener.close(is_complete=True)
        host.join()
        assert host.error is None


def test_a_run_that_is_complete_ends_env_hosts_in_a_long_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "_CLOSE_SECONDS", 0.5)
    slow = Slow(4, 0, fast=1)
    with trainer() as (listener, address), env_host(address, lambda *_: slow) as host:
        env = env_of(listener)
        env.reset()
        threading.Timer(0.2, listener.shutdown).start()
        with pytest.raises(ShutDown):
            env.step(STAY)
        listener.close(is_complete=True)
        slow.released.set()
        host.join()
        assert host.error is None


def second_is_slow(slow: Slow) -> MakeEnv:
    """Makes ``slow`` for one of two lanes."""
    made = iter([envs.Catch(4, 0), slow])
    return lambda num_envs, seed: next(made)


def test_a_lane_in_a_long_step_holds_no_other_up_at_the_end() -> None:
    slow = Slow(4, 0, fast=1)
    with (
        trainer(lanes=2) as (listener, address),
        env_host(address, second_is_slow(slow), lanes=2) as host,
    ):
        step_until_slow([env_of(listener, lane) for lane in range(2)], slow)
        listener.close(is_complete=True)
        goes_on = threading.Event()
        host._loop.call_soon_threadsafe(goes_on.set)
        assert goes_on.wait(5), "the guard against steps that never end cannot act"
        slow.released.set()
        host.join()
        assert host.error is None


def test_a_lane_that_was_lost_in_a_long_step_ends_with_the_others() -> None:
    slow = Slow(4, 0, fast=1)
    with (
        trainer(lanes=2, step_seconds=0.5) as (listener, address),
        env_host(address, second_is_slow(slow), lanes=2) as host,
    ):
        step_until_slow([env_of(listener, lane) for lane in range(2)], slow)
        until(lambda: listener.connected() == 1)
        listener.close(is_complete=True)
        slow.released.set()
        host.join()
        assert host.error is None


def step_until_slow(lanes: list[Env], slow: Slow) -> None:
    """Step both lanes once, each in a thread, which ends with the run."""

    def step(env: Env) -> None:
        with contextlib.suppress(ShutDown, EnvsLost):
            env.step(STAY)

    for env in lanes:
        env.reset()
    for env in lanes:
        threading.Thread(target=step, args=(env,)).start()
    until(lambda: slow.is_slow)


def test_a_run_that_is_complete_ends_lanes_that_it_had_no_place_for() -> None:
    with trainer() as (listener, address), env_host(address, lanes=2) as host:
        env_of(listener).reset()
        until(lambda: "no free lane" in "".join(host.said))
        listener.close(is_complete=True)
        host.join()
        assert host.error is None


@pytest.mark.slow
def test_an_env_host_without_a_trainer_gives_up() -> None:
    with trainer() as (listener, address), env_host(address, patience_seconds=1.0) as host:
        env_of(listener).reset()
        listener.close(is_complete=False)
        host.join()
        assert isinstance(host.error, StallError)
        assert str(host.error).startswith(f"no trainer at {address}: ")


def test_lanes_that_have_no_place_wait_as_long_as_there_is_a_trainer() -> None:
    """And do not end the lane beside them, which has one."""
    with trainer() as (listener, address), env_host(address, lanes=2, patience_seconds=0.5) as host:
        env = env_of(listener)
        env.reset()
        time.sleep(1.5)
        assert not env.step(STAY).first.any() and host.error is None
        listener.close(is_complete=True)
        host.join()
        assert host.error is None


@pytest.mark.slow
def test_patience_begins_with_the_loss_of_a_trainer() -> None:
    with trainer() as (listener, address), env_host(address, patience_seconds=3.0) as host:
        env_of(listener).reset()
        time.sleep(3.5)
        listener.close(is_complete=False)
        with trainer(port=int(address.rpartition(":")[2])) as (again, _):
            assert env_of(again).reset().first.all()
        assert host.error is None


def test_an_actor_that_waits_for_an_env_host_ends_with_the_run() -> None:
    with trainer() as (listener, _):
        env = env_of(listener)
        threading.Timer(0.2, listener.shutdown).start()
        with pytest.raises(ShutDown):
            env.reset()


def test_an_actor_that_waits_for_a_timestep_ends_with_the_run() -> None:
    with trainer(step_seconds=60) as (listener, address):
        slow = Slow(4, 0, fast=1)
        with env_host(address, lambda num_envs, seed: slow):
            env = env_of(listener)
            env.reset()
            threading.Timer(0.2, listener.shutdown).start()
            with pytest.raises(ShutDown):
                env.step(STAY)
            slow.released.set()
