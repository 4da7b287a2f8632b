"""R2D2: what is replayed is what was acted, and what an update does with it."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from whole_runs import assert_same

from sebulba import R2D2Config, algorithms, envs, losses
from sebulba.agent import QAgent
from sebulba.config import NetworkConfig, OptimiserConfig, ReplayConfig
from sebulba.inference import ActorProgram, epsilon_ladder
from sebulba.learners import Delivery, R2D2Learner, make_optimiser
from sebulba.learners.base import TrainState, assemble
from sebulba.learners.r2d2 import _BATCH_AXES, R2D2State, ReplayBatch
from sebulba.learners.storage import Sequences
from sebulba.topology import Topology
from sebulba.types import Timestep, Trajectory

B, UNROLLS = 8, 6
CONFIG = R2D2Config(
    env="sebulba/Catch",
    envs_per_actor=B,
    batch_size=B,
    actors_per_device=1,
    unroll_length=6,
    sequence_length=12,
    burn_in=5,
    sequences_per_update=8,
    n_step=3,
    discount=0.9,
    target_update=3,
    network=NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=8, frame_stack=2),
    # Not Adam, which makes one size of gradients that differ by a factor.
    optimiser=OptimiserConfig(name="rmsprop", epsilon=1.0, learning_rate=0.1, decay_to_zero=False),
    replay=ReplayConfig(capacity=B * UNROLLS, min_size=B),
)


def make_env(num_envs: int = B) -> envs.PreviousAction:
    return envs.PreviousAction(envs.Catch(num_envs, seed=0))


SPEC = make_env().spec
AGENT = QAgent(CONFIG.network, SPEC)
INIT = jax.jit(AGENT.init)
OPTIMISER = make_optimiser(CONFIG.optimiser, 100)
COMPILED: dict[tuple[int, int], R2D2Learner] = {}


@functools.cache
def topology(learners: int) -> Topology:
    return Topology.split(1, jax.devices()[: learners + (learners > 1)])


def make_learner(learners: int = 1, pieces: int = 1, ratio: float = 1.0) -> R2D2Learner:
    """With an empty replay; the programs are compiled once."""
    replay = dataclasses.replace(CONFIG.replay, ratio=ratio)
    config = dataclasses.replace(CONFIG, gradient_accumulation=pieces, replay=replay)
    learner = R2D2Learner(config, AGENT, SPEC, OPTIMISER, topology(learners))
    compiled = COMPILED.setdefault((learners, pieces), learner)
    for name in ("synchronised", "_errors", "_update_target"):
        setattr(learner, name, getattr(compiled, name))
    return learner


@functools.cache
def params(seed: int = 1) -> Any:
    return jax.device_get(INIT(jax.random.key(seed)))


@functools.cache
def unrolls() -> list[Trajectory]:
    """Consecutive ones of the real program, exploring, in NumPy."""
    exploration = algorithms.make_exploration(dataclasses.replace(CONFIG, epsilon_alpha=1.0), B)
    assert exploration is not None
    program = ActorProgram(AGENT, SPEC, CONFIG.unroll_length, 1, exploration.explore)
    env = make_env()
    carry = program.start(params(), jax.random.key(2), np.int32(0))
    timestep, unrolls = env.reset(), []
    for _ in range(UNROLLS):
        for _ in range(CONFIG.unroll_length):
            action, carry = program.step(params(), carry, timestep, exploration.epsilons)
            timestep = env.step(np.asarray(action))
        (trajectory,), carry = program.finish(carry, timestep)
        unrolls.append(jax.device_get(trajectory))
    return unrolls


def deliver(trajectory: Trajectory, learners: int = 1) -> Delivery:
    size = B // learners
    parts = []
    for i, device in enumerate(topology(learners).learners):
        cut = slice(i * size, (i + 1) * size)
        timestep, actor = jax.tree.map(
            lambda leaf, cut=cut: leaf[:, cut], (trajectory.timestep, trajectory.actor)
        )
        state = jax.tree.map(lambda leaf, cut=cut: leaf[cut], trajectory.initial_state)
        parts.append(jax.device_put(Trajectory(timestep, actor, state), device))
    return Delivery(0, parts)


def fill(learner: R2D2Learner, learners: int = 1, count: int = UNROLLS) -> int:
    """Insert ``count`` unrolls; returns the updates that are due."""
    return sum(learner.add([deliver(unroll, learners)]) for unroll in unrolls()[:count])


def new_state(learners: int = 1, target: int = 5) -> R2D2State:
    """With a target network unlike the online one, by default."""
    train = TrainState(params(), OPTIMISER.init(params()))
    state = R2D2State(train, params(seed=target), np.int32(0))  # type: ignore[arg-type]
    # Copies, since updates donate them.
    placed: R2D2State = jax.device_put(
        jax.tree.map(np.array, state), topology(learners).replicated(), may_alias=False
    )
    return placed


@jax.jit
def q_values(parameters: Any, sequences: Sequences) -> jax.Array:
    """``[N, S+1, A]``."""
    timestep = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), sequences.timestep)
    return AGENT.unroll(parameters, timestep, sequences.initial_state)[0].swapaxes(0, 1)


def test_a_replayed_sequence_has_the_actors_own_q_values() -> None:
    learner = make_learner()
    fill(learner)
    explored = 0
    starts = set()
    for _ in range(5):
        (sample,) = learner.replay.sample()
        got = np.asarray(q_values(params(), sample.sequences))
        for row, (index, age) in enumerate(zip(sample.indices, sample.ages, strict=True)):
            env = index % B
            span = unrolls()[age : age + 2]
            acted = np.concatenate([unroll.actor.extras[:, env] for unroll in span])
            np.testing.assert_allclose(got[row, :-1], acted, atol=1e-5)
            actions = np.asarray(sample.sequences.action[row])
            explored += int((actions != acted.argmax(axis=-1)).sum())
            starts.add(int(age))
    assert explored > 20 and starts == {0, 1, 2, 3}
    # Not all of it by the first step: sequences start in the middle of episodes.
    states = jax.tree.leaves(sample.sequences.initial_state)
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in states)


# A slow loop, in float64 and by the textbook.


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    root = math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3))
    return math.copysign(((root - 1) / 2e-3) ** 2 - 1, x)


def slow_errors(online: Any, target: Any, actions: Any, timestep: Timestep) -> list[float | None]:
    """TD errors of one sequence; None where a step is no part of the problem.

    Q values ``[L+1, A]`` of timesteps 0 to L, actions ``[L]``.
    """
    errors: list[float | None] = []
    length = len(actions)
    for t in range(length):
        if timestep.first[t + 1]:
            errors.append(None)
            continue
        value, discount, k = 0.0, 1.0, t
        while k < min(t + CONFIG.n_step, length) and not timestep.first[k + 1]:
            value += discount * float(timestep.reward[k + 1])
            discount *= CONFIG.discount * float(timestep.discount[k + 1])
            k += 1
        value += discount * h_inverse(float(target[k, np.argmax(online[k])]))
        errors.append(h(value) - float(online[t, actions[t]]))
    return errors


def slow_priority(errors: list[float | None]) -> float:
    absolute = [abs(error) for error in errors if error is not None]
    return 0.9 * max(absolute) + 0.1 * sum(absolute) / len(absolute)


def row_of(tree: Any, row: int, start: int = 0) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[row, start:], tree)


def priorities_in(learner: R2D2Learner, shard: int = 0) -> np.ndarray:
    powers = learner.replay._shards[shard].priorities.powers
    return np.where(powers > 0, powers, 0) ** (1 / CONFIG.replay.priority_exponent)


def test_priorities_at_collection() -> None:
    """Those of the actor's own Q values, which end with the unroll."""
    learner = make_learner()
    fill(learner)
    stored = priorities_in(learner).reshape(-1, B)
    for start in range(UNROLLS - 2):
        for env in range(B):
            errors: list[float | None] = []
            for unroll in unrolls()[start : start + 2]:
                q, action = unroll.actor.extras[:, env], unroll.actor.action[:-1, env]
                timestep = jax.tree.map(lambda leaf, env=env: leaf[:-1, env], unroll.timestep)
                errors += [*slow_errors(q, q, action, timestep), None]
            expected = slow_priority(errors[CONFIG.burn_in :])
            assert stored[start, env] == pytest.approx(expected, rel=1e-4), (start, env)


def update_once(learners: int, pieces: int) -> tuple[R2D2Learner, list[dict[int, float]]]:
    """With priorities written back, and those of the slow loop for each shard."""
    learner = make_learner(learners, pieces)
    fill(learner, learners)
    state = new_state(learners)
    samples = learner.replay.sample()
    learner._prefetched = samples
    online, target = params(), params(seed=5)
    expected = []
    for sample in samples:
        sequences = jax.device_get(sample.sequences)
        q, q_target = (np.asarray(q_values(p, sequences)) for p in (online, target))
        burn_in, values = CONFIG.burn_in, {}
        for row, index in enumerate(sample.indices.tolist()):
            errors = slow_errors(
                q[row, burn_in:],
                q_target[row, burn_in:],
                sequences.action[row, burn_in:],
                row_of(sequences.timestep, row, burn_in),
            )
            values[index] = slow_priority(errors)
        expected.append(values)
    learner.update(state)
    learner._write_back()
    return learner, expected


@pytest.mark.parametrize(("learners", "pieces"), [(1, 1), (4, 1), (2, 2)])
def test_priorities_after_an_update(learners: int, pieces: int) -> None:
    learner, expected = update_once(learners, pieces)
    for shard, values in enumerate(expected):
        stored = priorities_in(learner, shard)
        assert len(values) >= 2
        for index, value in values.items():
            assert stored[index] == pytest.approx(value, rel=1e-4)
    untouched = priorities_in(learner, 0)
    fresh = make_learner(learners)
    fill(fresh, learners)
    before = priorities_in(fresh, 0)
    others = np.setdiff1d(np.arange(len(before)), list(expected[0]))
    np.testing.assert_array_equal(untouched[others], before[others])


# The synchronised update


@functools.cache
def global_batch() -> ReplayBatch:
    """Eight sequences with different weights, in NumPy."""
    learner = make_learner()
    fill(learner)
    (sample,) = learner.replay.sample()
    weights = np.linspace(0.1, 1, 8).astype(np.float32)
    batch: ReplayBatch = jax.device_get(ReplayBatch(sample.sequences, weights))
    return batch


def placed_batch(learners: int) -> ReplayBatch:
    size = 8 // learners
    parts = [
        jax.device_put(
            jax.tree.map(lambda leaf, i=i: leaf[i * size : (i + 1) * size], global_batch()), device
        )
        for i, device in enumerate(topology(learners).learners)
    ]
    batch: ReplayBatch = assemble(parts, _BATCH_AXES, topology(learners))
    return batch


@functools.cache
def updated_on(learners: int, pieces: int = 1) -> tuple[TrainState, Any, np.ndarray]:
    """State, logs and priorities after one update on the global batch."""
    learner = make_learner(learners, pieces)
    state = new_state(learners)
    train, logs, parts = learner.synchronised(state.train, placed_batch(learners), state.target)
    per_device = [np.split(np.asarray(part), learners) for part in parts]
    priorities = np.concatenate(
        [np.concatenate(pieces) for pieces in zip(*per_device, strict=True)]
    )
    return train, jax.device_get(logs), priorities


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


@pytest.mark.parametrize(("learners", "pieces"), [(4, 1), (2, 2)])
def test_any_number_of_learners_gives_the_same_update(learners: int, pieces: int) -> None:
    (one, logs, priorities), start = updated_on(1), flat(params())
    got, got_logs, got_priorities = updated_on(learners, pieces)
    step = flat(one.params) - start
    assert np.linalg.norm(step) > 1e-2
    # The difference of parameters has float32's rounding of the parameters themselves.
    error = np.linalg.norm(flat(got.params) - flat(one.params))
    assert error < 1e-5 * min(np.linalg.norm(start), 10 * np.linalg.norm(step))
    np.testing.assert_allclose(got_priorities, priorities, rtol=1e-5)
    assert {"loss", "q_mean", "td_error", "gradient_norm"} <= logs.keys() == got_logs.keys()
    for name, value in logs.items():
        assert got_logs[name] == pytest.approx(value, rel=1e-5), name


def test_the_loss_is_the_weighted_mean_of_the_squares() -> None:
    _, logs, _ = updated_on(1)
    batch, burn_in = global_batch(), CONFIG.burn_in
    q, q_target = (np.asarray(q_values(params(seed), batch.sequences)) for seed in (1, 5))
    squares = []
    for row in range(8):
        errors = slow_errors(
            q[row, burn_in:],
            q_target[row, burn_in:],
            batch.sequences.action[row, burn_in:],
            row_of(batch.sequences.timestep, row, burn_in),
        )
        squares.append([0.5 * (error or 0) ** 2 * batch.weights[row] for error in errors])
    assert logs["loss"] == pytest.approx(np.mean(squares), rel=1e-4)


def test_parameters_stay_bit_identical_on_every_learner_device() -> None:
    learner = make_learner(4)
    due = fill(learner, 4)
    state = new_state(4)
    for _ in range(due):
        state, _ = learner.update(state)
    assert np.abs(flat(state.train.params) - flat(params())).max() > 1e-3
    for leaf in jax.tree.leaves(state):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 4 and len({copy.tobytes() for copy in copies}) == 1


def test_the_compiled_update_reduces_and_never_gathers() -> None:
    learner, state = make_learner(4), new_state(4)
    ((program, _),) = learner.synchronised.lower(state.train, placed_batch(4), state.target)
    text = program.compile().as_text()
    assert text is not None and "all-reduce" in text
    for other in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert other not in text, other


def test_weights_are_normalised_over_all_devices() -> None:
    learner = make_learner(4)
    fill(learner, 4)
    for number, shard in enumerate(learner.replay._shards):
        there = np.flatnonzero(shard.priorities.powers)
        shard.priorities.set(there, np.random.default_rng(number).gamma(1.0, size=len(there)))
    samples = learner.replay.sample()
    size = (UNROLLS - 2) * B / 4
    raw = np.concatenate([(size * sample.probabilities) ** -0.6 for sample in samples])
    weights = np.asarray(learner._batch(samples).weights)
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)
    assert sorted(part.max() == 1 for part in np.split(weights, 4)) == [False] * 3 + [True]


def test_burn_in_takes_no_gradient() -> None:
    learner, batch = make_learner(), global_batch()
    observation = batch.sequences.timestep.observation["observation"]

    def loss(observation: Any, state: Any) -> jax.Array:
        timestep = batch.sequences.timestep
        timestep = timestep._replace(
            observation={**timestep.observation, "observation": observation}
        )
        sequences = batch.sequences._replace(timestep=timestep, initial_state=state)
        return learner.loss(params(), params(seed=5), batch._replace(sequences=sequences))[0]

    state = batch.sequences.initial_state
    value_and_grad = jax.jit(jax.value_and_grad(loss, (0, 1)))
    value, (gradient, of_state) = jax.device_get(value_and_grad(observation, state))
    assert not gradient[:, : CONFIG.burn_in].any()
    assert all(not leaf.any() for leaf in jax.tree.leaves(of_state))
    assert np.abs(gradient[:, CONFIG.burn_in]).max() > 0
    # And yet it warms the state up.
    other = jax.tree.map(lambda leaf: leaf + 1, state)
    assert value_and_grad(observation, other)[0] != value


def test_the_target_network_is_copied_every_so_many_updates() -> None:
    learner = make_learner(ratio=2.0)
    assert fill(learner) == 8
    state = new_state(target=1)
    assert_same(state.target, state.train.params)
    target = params()
    for k in range(1, 9):
        state, _ = learner.update(state)
        now = jax.device_get(state.train.params)
        assert np.abs(flat(now) - flat(target)).max() > 0
        target = now if k % CONFIG.target_update == 0 else target
        assert_same(jax.device_get(state.target), target)
        assert int(state.updates) == k
        # Counted as it is done, although priorities come later.
        ratio = k * CONFIG.sequences_per_update / (4 * B)
        assert learner.metrics()["replay_ratio"] == pytest.approx(ratio)


# Exploration


def test_the_ladder_is_over_the_environments_of_all_hosts() -> None:
    hosts, lanes, num_envs = 2, 3, 4
    total = hosts * lanes * num_envs
    exploration = algorithms.make_exploration(R2D2Config(), total)
    assert exploration is not None
    expected = [0.4 ** (1 + 7 * i / (total - 1)) for i in range(total)]
    actors = [exploration.of_actor(number, num_envs) for number in range(hosts * lanes)]
    assert {actor.shape for actor in actors} == {(num_envs,)}
    np.testing.assert_allclose(np.concatenate(actors), expected, rtol=1e-6)
    np.testing.assert_allclose(epsilon_ladder(1), [0.4], rtol=1e-6)


@pytest.mark.parametrize(("greedy", "share"), [(False, 0.3), (True, 0.0)])
def test_evaluation_explores_by_its_own_epsilon(greedy: bool, share: float) -> None:
    config = dataclasses.replace(CONFIG, evaluation_epsilon=0.3)
    agent = algorithms.make_agent(config, SPEC, greedy=greedy)
    env = make_env(2000)
    output, _ = jax.jit(agent.act)(
        params(), jax.random.key(0), env.reset(), agent.initial_state(2000)
    )
    other = np.asarray(output.action) != np.asarray(output.extras).argmax(axis=-1)
    # A random action is the best one, too, in one of three.
    assert other.mean() == pytest.approx(share * 2 / 3, abs=0.04)


# Two episodes in one sequence


LAST = CONFIG.burn_in + 4
"""The first episode's last timestep; the next timestep is the second's first."""


def two_episodes(discount: float, seed: int, last: int = 0) -> ReplayBatch:
    """Random; the second episode depends on ``seed``, the first one's last frame on ``last``."""

    def random(seed: int, *shape: int) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    length = CONFIG.sequence_length + 1
    frames, reward = random(100, 1, length, 10, 5), random(101, 1, length)
    after = slice(LAST + 1, None)
    frames[:, after], reward[:, after] = random(seed, 10, 5), random(seed + 1, 1)
    frames[:, LAST] += last
    action = np.random.default_rng(102).integers(0, 3, (1, length)).astype(np.int32)
    action[:, LAST:] = np.random.default_rng(seed).integers(0, 3, action[:, LAST:].shape)
    # PreviousAction: that before each timestep, 0 at the start.
    previous = np.concatenate([[[0]], action[:, :-1]], axis=1).astype(np.int32)
    first = np.zeros((1, length), bool)
    first[:, LAST + 1] = True
    previous[first] = 0
    discounts = np.ones((1, length), np.float32)
    discounts[:, LAST] = discount
    discounts[:, LAST + 3] = seed % 2
    observation = {"observation": frames, "action": previous}
    timestep = Timestep(observation, reward, discounts, first)
    state = jax.tree.map(lambda leaf: leaf + random(103, *leaf.shape), AGENT.initial_state(1))
    return ReplayBatch(Sequences(timestep, action[:, :-1], state), np.ones(1, np.float32))


@functools.cache
def compiled_errors() -> Any:
    learner = make_learner()

    def errors(batch: ReplayBatch) -> jax.Array:
        found = []
        with pytest.MonkeyPatch.context() as patch:
            double_q = losses.n_step_double_q

            def spy(*args: Any, **kwargs: Any) -> Any:
                found.append(double_q(*args, **kwargs))
                return found[0]

            patch.setattr(losses, "n_step_double_q", spy)
            learner.loss(params(), params(seed=5), batch)
        return found[0].td_errors[:, 0]

    return jax.jit(errors)


def td_errors(discount: float, seed: int, last: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Of the first episode, of the second, and of the step between them."""
    errors = np.asarray(compiled_errors()(two_episodes(discount, seed, last)))
    assert errors.shape == (CONFIG.sequence_length - CONFIG.burn_in,)
    between = LAST - CONFIG.burn_in
    return errors[:between], errors[between + 1 :], float(errors[between])


@pytest.mark.parametrize("discount", [0.0, 1.0], ids=["termination", "truncation"])
def test_the_second_episode_changes_nothing_of_the_first(discount: float) -> None:
    first, second, between = td_errors(discount, seed=7)
    other_first, other_second, other_between = td_errors(discount, seed=8)
    np.testing.assert_array_equal(first, other_first)
    assert (second != other_second).all()
    assert between == other_between == 0
    assert (first != 0).all()


def test_truncation_bootstraps_from_the_last_frame_and_termination_does_not() -> None:
    for discount in (0.0, 1.0):
        first, *_ = td_errors(discount, seed=7)
        changed, *_ = td_errors(discount, seed=7, last=3)
        reached = CONFIG.n_step
        np.testing.assert_array_equal(first[:-reached], changed[:-reached])
        assert (first[-reached:] != changed[-reached:]).any() == bool(discount)
    assert len(first) > CONFIG.n_step
