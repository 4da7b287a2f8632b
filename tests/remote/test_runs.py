"""Trainings whose environments are elsewhere, and are lost and found again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from remote_parts import HostProcess, HostThread, Numbered
from whole_runs import HookedLearner, on, rows_of, tiny, tiny_r2d2

import sebulba
from sebulba import Algorithm, Config, PolicyAgent, algorithms, distributions
from sebulba.learners.replay.host import HostReplay
from sebulba.remote.lanes import LaneError
from sebulba.remote.settings import Listen
from sebulba.types import MakeEnv, Timestep, Unroll
from sebulba.validation import ConfigError

NUMBERED = "remote_parts:Numbered"


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def host_of(config: Config, address: str) -> HostThread:
    make_env: MakeEnv = Numbered if config.env == NUMBERED else sebulba.envs.Catch
    spec = make_env(config.envs_per_actor, 0).spec
    return HostThread(address, make_env, spec, config.env)


def watched(see: Callable[[Unroll], None], algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """``algorithm``, with ``see`` called for every unroll that its learner gets."""

    class Watching(HookedLearner):
        def add(self, unrolls: Sequence[Unroll]) -> int:
            for unroll in unrolls:
                see(unroll)
            return super().add(unrolls)

    def make_learner(*parts: Any) -> Watching:
        return Watching(algorithm.make_learner(*parts), lambda number: None)

    return dataclasses.replace(algorithm, make_learner=make_learner)


@contextlib.contextmanager
def losing(config: Config, address: str, seconds: float) -> Iterator[None]:
    """Two env-hosts, one of which is lost and comes back every few ``seconds``."""
    ended = threading.Event()

    def lose() -> None:
        while not ended.is_set():
            host = host_of(config, address)
            ended.wait(seconds)
            host.stop()

    thread = threading.Thread(target=lose)
    thread.start()
    steady = host_of(config, address)
    try:
        yield
    finally:
        ended.set()
        thread.join()
        steady.stop()


class Lives:
    """Looks at every unroll of ``Numbered``.

    Attributes:
      seeds: of each lane's lives, in their order.
    """

    def __init__(self) -> None:
        self.seeds: dict[int, list[int]] = {}
        self._last: dict[int, tuple[int, int]] = {}

    def __call__(self, unroll: Unroll) -> None:
        told = np.concatenate([shard.timestep.observation for shard in unroll.shards], axis=1)
        assert (told[..., 0] == told[0, 0, 0]).all(), "a trajectory is of one life"
        assert (np.diff(told[..., 1], axis=0) == 1).all(), (
            "no step is missing, and none comes twice"
        )
        seeds = self.seeds.setdefault(unroll.lane, [])
        if seeds and unroll.continues:
            assert tuple(told[0, 0]) == self._last[unroll.lane]
        else:
            assert told[0, 0, 1] == 0 and told[0, 0, 0] not in seeds
            seeds.append(int(told[0, 0, 0]))
        self._last[unroll.lane] = tuple(told[-1, 0])


@pytest.mark.slow
def test_lives_never_mix(address: str) -> None:
    config = tiny(env=NUMBERED, total_steps=6000, remote_lanes=2, actors_per_device=1)
    lives = Lives()
    with losing(config, address, seconds=0.7):
        result = sebulba.train(
            config,
            algorithm=watched(lives, algorithms.VTRACE),
            topology=on(1),
            listen=Listen(listen=address),
            progress=False,
        )
    assert set(lives.seeds) == {0, 1, 2}
    assert len(lives.seeds[0]) == 1
    assert len(lives.seeds[1]) + len(lives.seeds[2]) >= 4
    assert result.metrics[-1]["steps"] >= 6000


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["host", "device"])
def test_lives_never_mix_in_a_replay(
    storage: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, drawn = HostReplay.sample, 0

    def checked(self: HostReplay) -> Any:
        nonlocal drawn
        samples = sample(self)
        for part in samples:
            told = np.asarray(part.sequences.timestep.observation)
            assert (told[..., 0] == told[:, :1, 0]).all(), "a sequence is of one life"
            assert (np.diff(told[..., 1], axis=1) == 1).all()
            drawn += len(told)
        return samples

    monkeypatch.setattr(HostReplay, "sample", checked)
    config = tiny_r2d2(
        env=NUMBERED, total_steps=12_000, remote_lanes=2, actors_per_device=0, storage=storage
    )
    lives = Lives()
    with losing(config, address, seconds=1.0):
        sebulba.train(
            config,
            algorithm=watched(lives, algorithms.R2D2),
            topology=on(1),
            listen=Listen(listen=address),
            progress=False,
        )
    assert sum(map(len, lives.seeds.values())) >= 4
    assert drawn > 1000


@pytest.mark.slow
def test_with_a_fixed_lag_a_lost_lane_is_waited_for(address: str) -> None:
    config = tiny(total_steps=2000, remote_lanes=1, actors_per_device=1, policy_lag="0")
    lanes: list[int] = []
    taken_without: list[int] = []

    def come_back() -> None:
        taken_without.append(len(lanes))
        hosts.append(host_of(config, address))

    def see(unroll: Unroll) -> None:
        lanes.append(unroll.lane)
        if len(lanes) == 20:
            hosts[0].stop()
            threading.Timer(1.0, come_back).start()

    hosts = [host_of(config, address)]
    try:
        sebulba.train(
            config,
            algorithm=watched(see, algorithms.VTRACE),
            topology=on(1),
            listen=Listen(listen=address),
            progress=False,
        )
    finally:
        for host in hosts:
            host.stop()
    assert lanes == [number % 2 for number in range(len(lanes))]
    # What the local lane had ready, and no more: in that second it could have ended the run.
    assert taken_without[0] <= 22 < len(lanes)


def test_the_loss_of_a_lane_ends_a_run_that_is_told_so(address: str) -> None:
    config = tiny(total_steps=100_000, remote_lanes=1, actors_per_device=1)
    host = host_of(config, address)
    seen: list[Unroll] = []

    def see(unroll: Unroll) -> None:
        seen.append(unroll)
        if len(seen) == 10:
            host.stop()

    with pytest.raises(LaneError, match="lane 1 at ipv4:127"):
        sebulba.train(
            config,
            algorithm=watched(see, algorithms.VTRACE),
            topology=on(1),
            listen=Listen(listen=address, lost_lane="end"),
            progress=False,
        )


class Own(PolicyAgent):
    """An agent of one's own, which says another probability than that of its action."""

    def act(self, params: Any, key: Any, timestep: Timestep, state: Any) -> Any:
        output, state = super().act(params, key, timestep, state)
        behavior: Any = output.extras
        extras = behavior._replace(log_prob=behavior.log_prob - 1)
        return output._replace(extras=extras), state


def test_an_agent_of_ones_own_is_checked_in_remote_lanes_too(address: str) -> None:
    config = tiny(total_steps=100_000, remote_lanes=2, actors_per_device=0)
    agent = Own(config.network, sebulba.envs.Catch(1, 0).spec, distributions.Categorical(3))
    host = host_of(config, address)
    try:
        with pytest.raises(ConfigError, match=r"1 apart in lane \d, step \d, environment \d"):
            sebulba.train(
                config,
                agent=agent,
                topology=on(1),
                listen=Listen(listen=address),
                progress=False,
            )
    finally:
        host.stop()


@pytest.mark.slow
def test_learning_starts_with_as_many_lanes_as_are_asked_for(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(remote_lanes=2, actors_per_device=1, out=tmp_path / "run")
    hosts = [host_of(config, address)]
    late = threading.Timer(2.0, lambda: hosts.append(host_of(config, address)))
    late.start()
    try:
        sebulba.train(config, topology=on(1), listen=Listen(listen=address, min_lanes=2))
        for host in hosts:
            host.join()
            assert host.error is None, "env-hosts end with a run that is complete"
    finally:
        for host in hosts:
            host.stop()
    first = rows_of(tmp_path / "run")[0]
    assert first["remote_lanes"] == 2
    written = {name for name in first if name.startswith("remote")}
    page = (ROOT / "docs" / "metrics.md").read_text()
    of_lanes = re.findall(r"`remote_lane_0(_\w+)`", page)
    assert of_lanes
    # The local actor is number 0.
    names = {f"remote_lane_{lane}{name}" for lane in (1, 2) for name in of_lanes}
    assert written == {"remote_lanes", *names}
    output = capsys.readouterr().out
    assert "lane 2 is connected" in output and "(2 of 2)" in output
    assert "remote lanes 2" in output


@pytest.mark.parametrize(
    ("changed", "listen", "says"),
    [
        ({"remote_lanes": 1}, Listen(), "no address .* Set listen to HOST:PORT, on the command"),
        ({"remote_lanes": 1}, None, "remote_lanes is 1, and there is no address"),
        ({}, Listen(listen="127.0.0.1:1"), "nobody could connect. Set remote_lanes too, on"),
        ({}, Listen(min_lanes=2), "min_lanes is 2, and remote_lanes is 0"),
        ({}, Listen(insecure=True), "insecure is True, and remote_lanes is 0"),
        ({"remote_lanes": 1}, Listen(listen="0.0.0.0:1"), "needs a certificate and a token"),
        ({"remote_lanes": 1}, Listen(listen="port"), "must be HOST:PORT"),
        (
            {"remote_lanes": 1},
            Listen(listen="127.0.0.1:1", min_lanes=2),
            "at most remote_lanes, which is 1",
        ),
        ({"remote_lanes": 1}, Listen(listen="127.0.0.1:1", step_seconds=0), "--step-seconds"),
        ({"actors_per_device": 0}, None, "must be above 0 without remote_lanes"),
    ],
)
def test_what_cannot_work_is_refused(
    changed: dict[str, Any], listen: Listen | None, says: str, tmp_path: Path
) -> None:
    config = tiny(out=tmp_path / "run", **changed)
    with pytest.raises(ConfigError, match=says):
        sebulba.train(config, topology=on(1), listen=listen, progress=False)
    assert not (tmp_path / "run" / "config.json").exists()


def test_environments_without_a_name_cannot_be_remote(address: str) -> None:
    config = tiny(remote_lanes=1)
    with pytest.raises(ConfigError, match="environments with a name"):
        sebulba.train(config, make_env=Numbered, listen=Listen(listen=address), topology=on(1))


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize(
    ("preset", "total_steps"),
    [("vtrace-catch", 200_000), ("ppo-cartpole", 100_000), ("r2d2-catch", 120_000)],
)
def test_catch_is_learned_while_env_hosts_are_killed(
    preset: str, total_steps: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    # The rewards of Catch are smaller than those of CartPole. R2D2 rescales values, not rewards.
    rewards: dict[str, Any] = {} if preset.startswith("r2d2") else {"reward_scale": 1.0}
    preset_config: Any = sebulba.presets.get(preset)
    if isinstance(preset_config, sebulba.R2D2Config):
        # As many updates in a third of the time.
        replay = dataclasses.replace(preset_config.replay, min_size=200, samples_per_insert=3.0)
        preset_config = dataclasses.replace(preset_config, replay=replay)
    config = dataclasses.replace(
        preset_config,
        env="sebulba/Catch",
        **rewards,
        remote_lanes=2,
        actors_per_device=0,
        total_steps=total_steps,
    )
    words = ("--env", config.env, "--envs", str(config.envs_per_actor))
    hosts = [HostProcess(address, words) for _ in range(2)]
    ended, kills = threading.Event(), []

    def kill() -> None:
        while not ended.wait(10.0):
            hosts[1].kill()
            hosts[1].start()
            kills.append(time.monotonic())

    for host in hosts:
        host.start()
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        listen = Listen(listen=address, min_lanes=2)
        result = sebulba.train(config, topology=on(1), listen=listen, progress=False)
    finally:
        ended.set()
        thread.join()
        for host in hosts:
            host.kill()
    # Of games without the random actions of R2D2's training. In so few steps, policies miss up to 3
    # of 100 balls: 0.94.
    games = sebulba.evaluate(result.agent, result.params, result.make_env, 300)
    assert kills and games.returns.mean() >= 0.9
