"""A trainer's side and env-hosts, in threads of one process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from remote_parts import (
    CATCH,
    OPEN,
    STAY,
    HostThread,
    Numbered,
    Slow,
    env_host,
    env_of,
    trainer,
    until,
)

from sebulba import envs
from sebulba.remote.env_host import EnvHost
from sebulba.remote.handshake import facts
from sebulba.remote.lanes import LaneError
from sebulba.remote.listener import Listener
from sebulba.types import Env, EnvsLost, Timestep
from sebulba.validation import ConfigError

FACTS = facts("sebulba/Catch", {}, "machado", CATCH)
NUMBERED = Numbered(4, 0).spec


def told(listener: Listener) -> str:
    return "\n".join(listener.news())


def test_a_remote_environment_is_the_one_that_the_env_host_makes() -> None:
    made: list[tuple[int, int]] = []

    def make_env(num_envs: int, seed: int) -> Env:
        made.append((num_envs, seed))
        return envs.Catch(num_envs, seed)

    with trainer() as (listener, address), env_host(address, make_env):
        env = env_of(listener)
        first = env.reset()
        local = envs.Catch(*made[0])
        rng = np.random.default_rng(0)
        pairs = [(local.reset(), first)]
        for _ in range(50):
            action = rng.integers(3, size=4).astype(np.int32)
            pairs.append((local.step(action), env.step(action)))
    for one, other in pairs:
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)


def test_a_lane_that_comes_back_begins_with_fresh_environments() -> None:
    with trainer(env="numbered", spec=NUMBERED) as (listener, address):
        env = env_of(listener)
        lives = []
        for _ in range(3):
            with env_host(address, Numbered, NUMBERED, "numbered"):
                first = env.reset()
                lives.append(int(first.observation[0, 0]))
                steps = [first.observation[0, 1]]
                steps += [env.step(STAY).observation[0, 1] for _ in range(5)]
                assert steps == [0, 1, 2, 3, 4, 5] and first.first.all()
            with pytest.raises(EnvsLost, match="lane 0 at ipv"):
                env.step(STAY)
        assert len(set(lives)) == 3
        metrics = listener.metrics()
        assert metrics["remote_lanes"] == 0
        assert metrics["remote_lane_0_reconnections"] == 2
        assert metrics["remote_lane_0_bytes_per_second"] > 0


def test_a_lane_may_be_compressed_and_another_not() -> None:
    with (
        trainer(lanes=2) as (listener, address),
        env_host(address),
        env_host(address, compression="lz4"),
    ):
        lanes = [env_of(listener, lane) for lane in range(2)]
        seen = [[env.reset(), *(env.step(STAY) for _ in range(20))] for env in lanes]
        one, other = (lane.counts.nbytes for lane in listener._lanes.values())
    assert min(one, other) < 0.8 * max(one, other)
    for plain, compressed in zip(*seen, strict=True):
        for left, right in zip(plain, compressed, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", ["zstd", 3, ["lz4"], "x" * 500])
def test_a_compression_that_there_is_not_is_refused_by_name(name: Any) -> None:
    with trainer() as (listener, address):
        env_of(listener)
        host = HostThread(address, **{"compress": name})
        host.join()
        with pytest.raises(ConfigError, match=r"on the trainer, compress is .{1,210}must be none"):
            raise host.error or AssertionError


def test_what_a_lane_did_is_counted() -> None:
    def make_env(num_envs: int, seed: int) -> Env:
        return Slow(num_envs, seed, seconds=0.02)

    with trainer() as (listener, address), env_host(address, make_env):
        env = env_of(listener)
        reset = time.monotonic()
        env.reset()
        listener.metrics()
        start = time.monotonic()
        for _ in range(10):
            env.step(STAY)
            time.sleep(0.01)
        row = listener.metrics()
        end = time.monotonic()
    assert row["remote_lanes"] == 1
    assert row["remote_lane_0_steps_per_second"] == pytest.approx(40 / (end - start), rel=0.2)
    parts = ("environment", "trainer", "round_trip")
    seconds = [row[f"remote_lane_0_{part}_seconds"] for part in parts]
    assert seconds[0] >= 0.02 and seconds[1] >= 0.009 and seconds[2] > 0
    # The trainer's part of the first step began with the answer to the reset.
    assert sum(seconds) * 10 <= end - reset


def test_environments_that_hang_are_dropped_and_come_back() -> None:
    made: list[Slow] = []

    def make_env(num_envs: int, seed: int) -> Env:
        # Also slow on reset, which is a step of Catch: hence one more.
        made.append(Slow(num_envs, seed, fast=3 if not made else 100))
        return made[-1]

    with trainer(step_seconds=0.5) as (listener, address), env_host(address, make_env):
        env = env_of(listener)
        env.reset()
        env.step(STAY)
        env.step(STAY)
        with pytest.raises(EnvsLost, match=r"no answer for 0\.5 s"):
            env.step(STAY)
        assert listener.connected() == 0
        made[0].released.set()
        assert env.reset().first.all()
        assert len(made) >= 2


def test_an_env_host_waits_for_a_slow_trainer_and_sends_nothing_meanwhile() -> None:
    steps: list[float] = []

    class Counting(envs.Catch):
        def step(self, action: np.ndarray[Any, Any]) -> Timestep:
            steps.append(time.monotonic())
            return super().step(action)

    with trainer() as (listener, address), env_host(address, Counting):
        env = env_of(listener)
        env.reset()
        before = len(steps)
        time.sleep(0.5)
        assert len(steps) == before
        env.step(STAY)
        assert len(steps) == before + 1


def test_the_loss_of_a_lane_can_end_the_run() -> None:
    with trainer(ends_run=True) as (listener, address):
        env = env_of(listener)
        with env_host(address):
            env.reset()
            env.step(STAY)
        with pytest.raises(LaneError, match="or --lost-lane wait"):
            env.step(STAY)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sebulba": "0.0.9"}, "'sebulba' is '0.0.9' on the env-host and '.*' on the trainer"),
        ({"env": "Pong-v5"}, "'env' is 'Pong-v5' on the env-host and 'sebulba/Catch' on"),
        ({"env_options": '{"a": 1}'}, "'env_options' is .* so set --env-options"),
        ({"atari_protocol": "impala"}, "'atari_protocol' is 'impala'"),
        ({"envs": "8"}, "'envs' is '8' on the env-host and '4' on the trainer.* set --envs"),
        ({"observation": "uint8 [84, 84]"}, r"'observation' is 'uint8 \[84, 84\]'"),
        ({"action": "DiscreteSpec 18"}, "'action' is 'DiscreteSpec 18'"),
        ({"frame_skip": "4"}, "'frame_skip' is '4'"),
        ({"more": "x" * 500}, "'more' is 'x{199}... on the env-host and None on the trainer"),
    ],
)
def test_a_difference_is_refused_with_its_name(changed: dict[str, str], says: str) -> None:
    with trainer() as (listener, address):
        env_of(listener)
        host = HostThread(address, **changed)
        host.join()
        assert isinstance(host.error, ConfigError)
        with pytest.raises(ConfigError, match=says):
            raise host.error
        assert listener.connected() == 0
        until(lambda: "rejected 1 connection(s), the last from ipv" in told(listener))


def test_one_env_host_more_than_lanes_waits_for_a_free_one() -> None:
    with trainer() as (listener, address), env_host(address) as one:
        env = env_of(listener)
        env.reset()
        with env_host(address) as other:
            until(lambda: "no free lane" in "".join(other.said))
            one.stop()
            with pytest.raises(EnvsLost):
                env.step(STAY)
            assert env.reset().first.all()
            assert "lane 0" in "".join(other.said)


def test_a_lane_is_only_given_away_once_its_actor_has_begun() -> None:
    with trainer() as (listener, address), env_host(address) as host:
        until(lambda: host.said)
        assert "no free lane" in host.said[0]
        assert env_of(listener).reset().first.all()


def test_what_breaks_a_rule_of_environments_ends_the_env_host() -> None:
    class Infinite(envs.Catch):
        def step(self, action: np.ndarray[Any, Any]) -> Timestep:
            timestep = super().step(action)
            reward = np.where(timestep.discount == 0, np.nan, timestep.reward)
            return timestep._replace(reward=reward.astype(np.float32))

    with trainer() as (listener, address), env_host(address, Infinite) as host:
        env = env_of(listener)
        env.reset()
        with pytest.raises(EnvsLost):
            for _ in range(10):
                env.step(STAY)
        host.join()
        assert isinstance(host.error, ConfigError) and "must be finite" in str(host.error)


def test_an_address_that_is_taken_is_refused() -> None:
    with trainer() as (listener, address):
        address = address.replace("localhost", "127.0.0.1")
        other = Listener(
            address, listener._security, {}, CATCH, range(1), step_seconds=1.0, ends_run=False
        )
        with pytest.raises(ConfigError, match="nothing can listen at 127"):
            other.open()
        other.close(is_complete=False)


def test_the_link_is_measured_without_environments() -> None:
    with trainer() as (_, address):
        text = EnvHost(address, OPEN, FACTS, CATCH, envs.Catch, 0.0, print).measure(2, 0.3)
    assert text.startswith("2 lanes of 4 environments: ") and "99th percentile" in text
