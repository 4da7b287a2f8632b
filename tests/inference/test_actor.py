"""Actors against a scripted environment in which every number says where it belongs."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from actor_parts import (
    B,
    Rig,
    Scripted,
    T,
    Telltale,
    code,
    in_turn,
    make_program,
    telltale,
    whole,
)
from unrolls import random_params

from sebulba import NetworkConfig, PolicyAgent, envs
from sebulba.agents import distributions
from sebulba.runtime.schedule import Schedule
from sebulba.types import (
    EnvsLost,
    Timestep,
    Unroll,
)


def test_an_action_pairs_with_what_came_of_it() -> None:
    rig = Rig(program=telltale())
    trajectories = [whole(unroll) for unroll in rig.collect(5)]
    sent = np.stack(rig.env.actions)
    for i, (timestep, actor, _) in enumerate(trajectories):
        env, t, episode, reward, discount = np.moveaxis(timestep.observation, -1, 0)
        np.testing.assert_array_equal(env, np.tile(np.arange(B), (T + 1, 1)))
        np.testing.assert_array_equal(actor.action, sent[i * T : (i + 1) * T])
        # Seen at t, acted at t ...
        np.testing.assert_array_equal(actor.action, code(timestep.observation[:-1]))
        # ... and judged at t + 1.
        first = timestep.first[1:]
        np.testing.assert_array_equal(timestep.reward[1:], np.where(first, 0, actor.action))
        np.testing.assert_array_equal(timestep.discount == 0, (t == env + 2) & (env % 2 == 0))
        np.testing.assert_array_equal(timestep.reward, reward)
        np.testing.assert_array_equal(timestep.discount, discount)
        np.testing.assert_array_equal(timestep.first, t == 0)
        np.testing.assert_array_equal(np.diff(episode, axis=0), first)
    firsts = np.stack([trajectory.timestep.first for trajectory in trajectories])
    assert firsts[:, 1:-1].any() and firsts[1:, 0].any()


def test_consecutive_unrolls_share_one_timestep_and_go_on_from_one_state() -> None:
    trajectories = [whole(unroll) for unroll in Rig(program=telltale()).collect(4)]
    for i, (one, other) in enumerate(itertools.pairwise(trajectories)):
        jax.tree.map(
            lambda last, first: np.testing.assert_array_equal(last[-1], first[0]),
            one.timestep,
            other.timestep,
        )
        np.testing.assert_array_equal(other.initial_state, np.full(B, (i + 1) * T))
        steps = np.arange((i + 1) * T, (i + 2) * T)
        np.testing.assert_array_equal(other.actor.extras.steps, np.tile(steps[:, None], (1, B)))


class Losing(Scripted):
    """Environments that are lost in some of their steps; episodes are numbered from 100 x life."""

    LOST = (7, 8, 20)

    def __init__(self) -> None:
        super().__init__()
        self.life = -1

    def reset(self) -> Timestep:
        self.life += 1
        self.t[:] = 0
        self.episode[:] = 100 * self.life
        return super().reset()

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        timestep = super().step(action)
        if len(self.actions) in self.LOST:
            raise EnvsLost
        return timestep


def test_no_unroll_and_no_state_goes_on_where_environments_were_lost() -> None:
    env = Losing()
    unrolls = Rig(env=env).collect(6)
    lives, steps = [], []
    for unroll in unrolls:
        timestep, actor, state = whole(unroll)
        life = timestep.observation[..., 2] // 100
        assert (life == life[0, 0]).all()
        lives.append(int(life[0, 0]))
        # The state counts the steps of its life.
        steps.append(int(state[0]))
        assert (actor.extras.steps == steps[-1] + np.arange(T)[:, None]).all()
        assert timestep.first[0].all() == (steps[-1] == 0)
    # Step 7 is the second of an unroll, step 8 the first of a life, and step 20 the second again.
    assert lives == [0, 2, 2, 3, 3, 3]
    assert steps == [0, 0, 5, 0, 5, 10]
    assert [unroll.continues for unroll in unrolls] == [True, False, True, False, True, True]


def test_episodes_are_counted_with_their_true_returns() -> None:
    unrolls = Rig(program=telltale()).collect(6)
    trajectories = [whole(unroll) for unroll in unrolls]
    rewards = np.concatenate([trajectory.timestep.reward[1:] for trajectory in trajectories])
    firsts = np.concatenate([trajectory.timestep.first[1:] for trajectory in trajectories])
    expected = []
    starts = np.zeros(B, int)
    for t, env in zip(*np.nonzero(firsts), strict=True):
        expected.append((rewards[starts[env] : t, env].sum(), env + 2))
        starts[env] = t
    assert len(expected) > 20
    assert [episode for unroll in unrolls for episode in unroll.episodes] == expected


def test_replay_from_the_initial_state_reproduces_the_actor() -> None:
    env = envs.PreviousAction(envs.Memory(B, seed=1, num_cues=3, delay=4))
    network = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8, frame_stack=3)
    agent = PolicyAgent(network, env.spec, distributions.make(env.spec.action))
    # Far from uniform, unlike a fresh policy, so that a wrong state shows in the probabilities.
    params = random_params(agent, gain=2.0)
    unrolls = Rig(agent=agent, env=env, params=params).collect(5)
    unroll = jax.jit(agent.unroll)
    assert any(whole(u).timestep.first[1:-1].any() for u in unrolls)
    for now, later in itertools.pairwise(unrolls):
        timestep, actor, state = whole(now)
        output, _ = unroll(params, timestep, state)
        policy = output.policy[:-1]
        log_prob = distributions.Categorical(3).log_prob(policy, actor.extras.raw)
        np.testing.assert_allclose(log_prob, actor.extras.log_prob, atol=1e-5)
        _, state = unroll(params, jax.tree.map(lambda leaf: leaf[:-1], timestep), state)
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-5),
            state,
            whole(later).initial_state,
        )
    assert np.ptp(actor.extras.log_prob) > 0.1


def test_one_version_acts_for_a_whole_unroll_and_travels_with_it() -> None:
    asked = []

    class Recorded(Schedule):
        def version_of(self, lane: int, unroll: int) -> int | None:
            asked.append(unroll)
            return super().version_of(lane, unroll)

    two_unrolls = Recorded(lanes=1, per_turn=2, first_turn=0, lag="0")
    rig = Rig(program=telltale(), schedule=two_unrolls)
    rig.publish(1)
    with rig.running() as get:
        unrolls = [get() for _ in range(4)]
        rig.publish(2)
        unrolls.append(get())
    assert [unroll.version for unroll in unrolls] == [0, 0, 1, 1, 2]
    for unroll in unrolls:
        np.testing.assert_array_equal(whole(unroll).actor.extras.version, unroll.version)
    assert asked == list(range(len(asked)))


def test_without_a_schedule_the_newest_acts_from_the_next_unroll_on() -> None:
    rig = Rig(program=telltale())
    with rig.running() as get:
        assert get().version == 0
        rig.publish(1)
        jax.block_until_ready(rig.slot.exactly(1).params)
        # At most one unroll waits in the queue, one is waiting to, and one is being acted.
        later = [get() for _ in range(6)]
    versions = [unroll.version for unroll in later]
    assert versions == sorted(versions) and versions[-1] == 1 and 1 in versions[:4]
    for unroll in later:
        np.testing.assert_array_equal(whole(unroll).actor.extras.version, unroll.version)


def test_one_call_for_each_step_and_no_compilation_after_the_warm_up() -> None:
    rig = Rig(program=make_program(Telltale(), Scripted().spec))
    calls: list[str] = []
    compiled: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(rig.program, name)
        return lambda *arguments: (calls.append(name), function(*arguments))[1]

    for name in ("start", "step", "finish"):
        setattr(rig.program, name, counted(name))

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        rig.collect(4)
        warm, _ = len(compiled), jax.jit(lambda x: x * 3)(jnp.zeros(()))
        assert len(compiled) > warm, "the listener hears of no compilation at all"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert warm == 0
    unroll = ["step"] * T + ["finish"]
    assert calls[: 4 * len(unroll) + 1] == ["start", *unroll * 4]
    assert len(rig.env.actions) == calls.count("step")


def noise(unrolls: list[Unroll]) -> np.ndarray[Any, Any]:
    return np.stack([whole(unroll).actor.extras.noise for unroll in unrolls])


def test_random_numbers_depend_on_the_actor_the_unroll_and_the_step() -> None:
    numbers = noise(Rig(program=telltale()).collect(3))
    assert len(np.unique(numbers)) == numbers.size
    np.testing.assert_array_equal(numbers, noise(Rig(program=telltale()).collect(3)))
    other = noise(Rig(program=telltale(), key=1).collect(3))
    assert not np.isin(numbers, other).any()


def test_a_resumed_actor_goes_on_with_its_random_numbers() -> None:
    numbers = noise(Rig(program=telltale()).collect(4))
    resumed = noise(Rig(program=telltale(), schedule=in_turn(2)).collect(2))
    np.testing.assert_array_equal(resumed, numbers[2:])


def test_an_actor_says_where_its_time_went() -> None:
    unrolls = Rig(program=telltale()).collect(2)
    assert set(unrolls[1].seconds) == {"environment", "act", "transfer", "queue", "params"}
    assert all(seconds >= 0 for seconds in unrolls[1].seconds.values())


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_each_learner_device_gets_its_shard_of_the_environments(devices: int) -> None:
    rig = Rig(devices=devices)
    learners = rig.topology.learners
    for unroll in rig.collect(2):
        assert len(unroll.shards) == len(learners)
        for shard, device in zip(unroll.shards, learners, strict=True):
            assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(shard))
            assert shard.timestep.first.shape == (T + 1, B // len(learners))
            assert shard.actor.action.shape == (T, B // len(learners))
            assert shard.initial_state.shape == (B // len(learners),)
        envs_of_shards = [shard.timestep.observation[0, :, 0] for shard in unroll.shards]
        np.testing.assert_array_equal(np.concatenate(envs_of_shards), np.arange(B))


def test_the_environment_is_closed_and_a_failure_says_where_it_was() -> None:
    class Failing(Scripted):
        def step(self, action: np.ndarray[Any, Any]) -> Timestep:
            if len(self.actions) == 2 * T + 1:
                raise OSError("the game crashed")
            return super().step(action)

    rig = Rig(program=telltale(), env=Failing(), schedule=in_turn(7))
    with pytest.raises(OSError, match="crashed") as error, rig.running() as get:
        for _ in range(3):
            get()
    note = f"in thread actor-0 on device {rig.device}, unroll 9, after 11 steps"
    assert error.value.__notes__ == [note]
    assert rig.env.closed


@pytest.mark.skipif(sys.platform != "linux", reason="a thread's own priority is Linux's")
def test_environments_give_way_to_the_learner() -> None:
    seen: list[int] = []

    class Watched(Scripted):
        def reset(self) -> Timestep:
            # A pool's threads are started by the actor's thread, and inherit.
            worker = threading.Thread(target=lambda: seen.append(niceness()))
            worker.start()
            worker.join()
            return super().reset()

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    Rig(program=telltale(), env=Watched()).collect(1)
    assert seen == [min(before + 5, 19)]
    assert niceness() == before
