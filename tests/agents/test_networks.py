"""Networks against slow loops: frame stacks, recurrent state, shapes and number types."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_parts import (
    BYTE,
    FLOAT,
    IMAGE,
    B,
    T,
    close,
    grown,
    make_agent,
    slow_stacks,
    spec,
    timesteps,
    with_action,
)

from sebulba import ConfigError, NetworkConfig, VTraceConfig
from sebulba.agents import distributions
from sebulba.agents.networks import initial_state, stack_frames
from sebulba.agents.reference import add_time
from sebulba.types import ArraySpec, BoxSpec, DiscreteSpec, EnvSpec, Timestep

stack = jax.jit(stack_frames)


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("lengths", [(12,), (1,) * 12, (5, 7), (1, 2, 3, 1, 5), (2, 10)])
def test_stacks_equal_a_slow_loop_however_the_sequence_is_cut(
    depth: int, lengths: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(depth)
    for chance in (0.0, 0.2, 0.7):
        frames = rng.integers(1, 255, (12, B, 2, 3)).astype(np.uint8)
        first = rng.random((12, B)) < chance
        before = jnp.zeros((B, depth - 1, 2, 3), jnp.uint8)
        got, start = [], 0
        for length in lengths:
            now = slice(start, start + length)
            stacks, before = stack(frames[now], first[now], before)
            got.append(np.asarray(stacks))
            start += length
        stacks = np.concatenate(got)
        assert stacks.dtype == np.uint8
        expected = np.moveaxis(slow_stacks(frames, first, depth), -1, 2)
        np.testing.assert_array_equal(stacks, expected)


@pytest.mark.slow
def test_stacks_are_those_of_envpool() -> None:
    import envpool

    depth, steps = 4, 40
    options = {"num_envs": 2, "seed": 5, "noop_max": 1, "repeat_action_probability": 0.0}
    single = envpool.make_gymnasium("Pong-v5", stack_num=1, **options)
    stacked = envpool.make_gymnasium("Pong-v5", stack_num=depth, **options)
    frames, expected = [single.reset()[0]], [stacked.reset()[0]]
    for action in np.random.default_rng(0).integers(0, 6, (steps, 2)).astype(np.int32):
        frames.append(single.step(action)[0])
        expected.append(stacked.step(action)[0])
    single.close()
    stacked.close()
    frames = np.stack(frames)[:, :, 0]
    first = np.zeros(frames.shape[:2], bool)
    first[0] = True
    got, _ = stack(frames, first, jnp.zeros((2, depth - 1, 84, 84), jnp.uint8))
    # EnvPool fills the first stacks of an episode with its first frame, we with zeros.
    now = slice(depth - 1, None)
    assert len(np.unique(frames.reshape(steps + 1, -1), axis=0)) > steps // 2
    np.testing.assert_array_equal(got[now], np.stack(expected)[now])


RECURRENT = [
    {"core": "lstm"},
    {"frame_stack": 3},
    {"core": "lstm", "frame_stack": 4},
]


@pytest.mark.parametrize("network", RECURRENT)
def test_acting_step_by_step_equals_one_unroll(network: dict[str, Any]) -> None:
    env = with_action(spec(5))
    agent = make_agent(env, **network)
    params, seen = grown(agent), timesteps(env)
    whole, last = jax.jit(agent.unroll)(params, seen, agent.initial_state(B))
    act = jax.jit(agent.act)
    state = agent.initial_state(B)
    for t in range(T):
        now = jax.tree.map(lambda leaf, t=t: leaf[t], seen)
        output, state = act(params, jax.random.key(t), now, state)
        behavior = output.extras
        policy = jax.tree.map(lambda leaf, t=t: leaf[t], whole.policy)
        expected = distributions.Categorical(4).log_prob(policy, behavior.raw)
        np.testing.assert_allclose(behavior.log_prob, expected, atol=1e-5)
    close(state, last)


@pytest.mark.parametrize("network", RECURRENT)
def test_nothing_of_one_episode_reaches_the_next(network: dict[str, Any]) -> None:
    env = with_action(spec(5))
    agent = make_agent(env, **network)
    params, seen = grown(agent), timesteps(env)
    unroll = jax.jit(agent.unroll)
    used = jax.tree.map(jnp.ones_like, agent.initial_state(B))
    fresh = agent.initial_state(B)
    assert jax.tree.leaves(fresh) and not any(leaf.any() for leaf in jax.tree.leaves(fresh))

    seen = seen._replace(first=np.zeros((T, B), bool))
    assert (
        np.abs(unroll(params, seen, used)[0].value - unroll(params, seen, fresh)[0].value).max()
        > 0.01
    )
    seen.first[0] = True
    close(unroll(params, seen, used), unroll(params, seen, fresh), atol=1e-6)

    seen.first[4] = True
    output, last = unroll(params, seen, used)
    rest, alone = unroll(params, jax.tree.map(lambda leaf: leaf[4:], seen), fresh)
    close(jax.tree.map(lambda leaf: leaf[4:], output), rest)
    close(last, alone)


def test_the_core_sees_the_last_action_and_the_clipped_last_reward() -> None:
    env = with_action(spec(5))
    agent = make_agent(env, core="lstm")
    params, seen, state = grown(agent), timesteps(env), agent.initial_state(B)
    unroll = jax.jit(agent.unroll)

    def value(timestep: Timestep) -> Any:
        return np.asarray(unroll(params, timestep, state)[0].value)

    def with_reward(reward: float) -> Any:
        return value(seen._replace(reward=np.full((T, B), reward, np.float32)))

    np.testing.assert_array_equal(with_reward(1.0), with_reward(100.0))
    np.testing.assert_array_equal(with_reward(-1.0), with_reward(-7.0))
    assert np.abs(with_reward(0.5) - with_reward(1.0)).max() > 1e-3
    other = (seen.observation["last_action"] + 1) % 4
    moved = seen._replace(observation={**seen.observation, "last_action": other})
    assert np.abs(value(moved) - value(seen)).max() > 1e-3


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("name", ["action", "last_action"])
def test_what_an_environment_calls_an_action_is_observed_as_all_else(core: str, name: str) -> None:
    """Such as what others did, or a hint; with an LSTM beside the last action, too."""
    of_env = spec(5)._replace(
        observation={"observation": ArraySpec((2,), FLOAT), name: ArraySpec((4,), FLOAT)}
    )
    env = with_action(of_env) if core == "lstm" else of_env
    agent = make_agent(env, core=core)
    params, seen, state = grown(agent), timesteps(env), agent.initial_state(B)

    def value(moved: float) -> Any:
        def move(leaf: Any) -> Any:
            return leaf + moved if leaf.shape[2:] == (4,) else leaf

        observation = jax.tree.map(move, seen.observation)
        timestep = seen._replace(observation=observation)
        return np.asarray(jax.jit(agent.unroll)(params, timestep, state)[0].value)

    assert np.abs(value(1.0) - value(0.0)).max() > 1e-3


BOX = BoxSpec(-np.ones((2, 1), np.float32), np.ones((2, 1), np.float32))
SHAPES = [
    (spec(5), {}),
    (spec(2, 3), {"torso": "mlp", "hidden_sizes": ()}),
    (spec(2, 3), {"torso": "mlp", "frame_stack": 4}),
    (spec(5, action=BOX), {}),
    (with_action(spec(5, action=BOX)), {"core": "lstm"}),
    (EnvSpec({"a": ArraySpec((2,), FLOAT), "b": ArraySpec((), BYTE)}, DiscreteSpec(4), B), {}),
    (IMAGE, {"torso": "small"}),
    (IMAGE, {"torso": "shallow"}),
    (IMAGE, {"torso": "deep"}),
    (IMAGE, {"torso": "shallow", "frame_stack": 4}),
    (IMAGE, {"torso": "deep", "frame_stack": 4, "core": "lstm"}),
    (with_action(IMAGE), {"torso": "deep", "frame_stack": 4, "core": "lstm"}),
    (spec(36, 40, 3, dtype=BYTE), {"torso": "shallow"}),
    (spec(36, 40, 3), {"torso": "deep", "core": "lstm"}),
]


@pytest.mark.parametrize(("env", "network"), SHAPES)
def test_shapes(env: EnvSpec, network: dict[str, Any]) -> None:
    agent = make_agent(env, **network)
    params = jax.eval_shape(agent.init, jax.random.key(0))
    state = jax.eval_shape(lambda: agent.initial_state(B))
    seen = timesteps(env)
    output, last = jax.eval_shape(agent.unroll, params, seen, state)
    size = distributions.make(env.action).parameters_size
    assert (output.policy.shape, output.policy.dtype) == ((T, B, size), FLOAT)
    assert (output.value.shape, output.value.dtype) == ((T, B), FLOAT)
    assert last == state
    now = jax.tree.map(lambda leaf: leaf[0], seen)
    acted, last = jax.eval_shape(agent.act, params, jax.random.key(0), now, state)
    assert acted.action.shape == (B, *(() if isinstance(env.action, DiscreteSpec) else (2, 1)))
    assert acted.extras.log_prob.shape == (B,)
    assert last == state


@pytest.mark.parametrize(
    ("torso", "convolutions", "dense"),
    # What Atari's 84 x 84 pixels shrink to.
    [("small", 2, 9 * 9 * 32), ("shallow", 3, 7 * 7 * 64), ("deep", 15, 11 * 11 * 32)],
)
def test_torsos_are_those_of_the_papers(torso: str, convolutions: int, dense: int) -> None:
    agent = make_agent(spec(84, 84, dtype=BYTE), torso=torso, frame_stack=4)
    params = jax.eval_shape(agent.init, jax.random.key(0))["torso"]
    kernels = [layer["kernel"].shape for name, layer in params.items() if "Conv" in name]
    assert len(kernels) == convolutions
    first = {"small": (8, 8, 4, 16), "shallow": (8, 8, 4, 32), "deep": (3, 3, 4, 16)}
    assert kernels[0] == first[torso]
    assert params["Dense_0"]["kernel"].shape == (dense, 16)


def test_a_larger_residual_network() -> None:
    """On 96 x 72 pixels in color and more, as Google Research Football has them."""
    agent = make_agent(
        spec(72, 96, 4, dtype=BYTE), torso="deep", channels=(32, 64, 64, 64), num_blocks=3
    )
    params = jax.eval_shape(agent.init, jax.random.key(0))["torso"]
    kernels = [layer["kernel"].shape for name, layer in params.items() if "Conv" in name]
    assert len(kernels) == 4 * (1 + 3 * 2)
    assert (kernels[0], kernels[-1]) == ((3, 3, 4, 32), (3, 3, 64, 64))
    assert params["Dense_0"]["kernel"].shape == (5 * 6 * 64, 16)


@pytest.mark.slow
def test_layers_with_tanh_begin_orthogonal() -> None:
    agent = make_agent(spec(5), activation="tanh", hidden_sizes=(16, 16))
    params = agent.init(jax.random.key(0))
    first, second = (params["torso"][f"Dense_{i}"]["kernel"] for i in (0, 1))
    close(first @ first.T, 2 * np.eye(5))
    close(second.T @ second, 2 * np.eye(16))
    x = jnp.ones((T, B, 5))
    features = np.tanh(np.tanh(x @ first) @ second)
    seen = timesteps(spec(5))._replace(observation=x)
    value = features @ params["PolicyValueHeads_0"]["Dense_1"]["kernel"]
    close(agent.unroll(params, seen, {})[0].value, value[..., 0])


def test_policy_and_value_may_have_layers_of_their_own() -> None:
    agent = make_agent(spec(5), separate_value=True)
    params, seen = grown(agent), timesteps(spec(5))

    def gradient_of(name: str) -> Any:
        def total(params: Any) -> Any:
            return jnp.sum(jnp.square(getattr(agent.unroll(params, seen, {})[0], name)))

        largest = jax.tree.map(lambda leaf: float(jnp.abs(leaf).max()), jax.grad(total)(params))
        return {name: max(jax.tree.leaves(largest[name])) for name in ("torso", "value_torso")}

    of_policy, of_value = gradient_of("policy"), gradient_of("value")
    assert of_policy["value_torso"] == of_value["torso"] == 0
    assert of_policy["torso"] > 0 and of_value["value_torso"] > 0
    for image in (spec(36, 40, dtype=BYTE), spec(5)):
        torso = "small" if image.observation.dtype == BYTE else "mlp"
        shapes = make_agent(image, torso=torso, separate_value=True)
        params = jax.eval_shape(shapes.init, jax.random.key(0))
        assert jax.tree.structure(params["torso"]) == jax.tree.structure(params["value_torso"])


@pytest.mark.parametrize("depends", [False, True])
def test_deviations_begin_where_the_config_says(depends: bool) -> None:
    box = BoxSpec(-np.ones(3, np.float32), np.ones(3, np.float32))
    env = spec(5, action=box)
    agent = make_agent(env, initial_log_std=-1.5, state_dependent_std=depends)
    params, seen = agent.init(jax.random.key(0)), timesteps(env)
    policy = np.asarray(agent.unroll(params, seen, {})[0].policy)
    close(policy[..., 3:], np.full((T, B, 3), -1.5), atol=0.1)
    assert np.abs(policy[..., :3]).max() < 0.1
    assert (np.ptp(policy[..., 3:]) > 0) == depends
    (low, high), rule = distributions.LOG_STD_RANGE, "must be a number from"
    for value in (low, high):
        VTraceConfig(network=NetworkConfig(initial_log_std=value)).validate()
    for value in (low - 0.1, high + 0.1):
        with pytest.raises(ConfigError, match=f"initial_log_std is {value}: it {rule} -5 to 2"):
            VTraceConfig(network=NetworkConfig(initial_log_std=value)).validate()


@pytest.mark.slow
@pytest.mark.parametrize("torso", ["mlp", "small", "shallow"])
def test_layer_norm_makes_every_layer_blind_to_the_size_of_its_inputs(torso: str) -> None:
    env = spec(5) if torso == "mlp" else spec(36, 40, 2)
    agent = make_agent(env, torso=torso, layer_norm=True, hidden_sizes=(16, 16))
    params, seen = agent.init(jax.random.key(0)), timesteps(env)  # Their biases are 0.
    names = params["torso"].keys()
    layers = [name for name in names if "Dense" in name or "Conv" in name]
    assert sum("LayerNorm" in name for name in names) == len(layers) > 1
    value = agent.unroll(params, seen, {})[0].value
    for name in layers:
        larger = jax.tree.map(lambda leaf: leaf, params)
        larger["torso"][name]["kernel"] *= 100.0
        close(agent.unroll(larger, seen, {})[0].value, value, atol=1e-2)
    assert np.ptp(value) > 0.1


def test_bfloat16_computes_and_float32_remembers() -> None:
    env = spec(5)
    exact = make_agent(env, core="lstm", frame_stack=2)
    rough = make_agent(env, core="lstm", frame_stack=2, dtype="bfloat16")
    params, seen, state = grown(exact), timesteps(env), exact.initial_state(B)
    init = jax.eval_shape(rough.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(init)} == {FLOAT}

    def loss(params: Any) -> Any:
        return jnp.sum(rough.unroll(params, seen, state)[0].value)

    products = [
        line for line in str(jax.make_jaxpr(loss)(params)).splitlines() if "dot_gen" in line
    ]
    in_bfloat16 = [line for line in products if "bf16[" in line.split("=")[0]]
    # All but the two heads; and the recurrent one, whose sums are float32.
    assert len(products) - len(in_bfloat16) == 3 and len(in_bfloat16) >= 2
    gradient = jax.eval_shape(jax.grad(loss), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {FLOAT}
    close_to, _ = jax.jit(exact.unroll)(params, seen, state)
    output, last = jax.jit(rough.unroll)(params, seen, state)
    assert {leaf.dtype for leaf in jax.tree.leaves((output, last))} == {FLOAT}
    close(output, close_to, atol=0.3)
    assert np.abs(output.value - close_to.value).max() > 1e-5


def test_dict_observations_are_all_seen_and_integers_are_tamed() -> None:
    arrays = {"a": ArraySpec((2,), FLOAT), "n": ArraySpec((), np.dtype(np.int32))}
    env = EnvSpec(arrays, DiscreteSpec(4), B)
    agent = make_agent(env)
    params, seen = grown(agent), timesteps(env)
    value = jax.jit(
        lambda observation: (
            agent.unroll(params, seen._replace(observation=observation), {})[0].value
        )
    )
    before = value(seen.observation)
    for name, leaf in seen.observation.items():
        assert np.abs(value({**seen.observation, name: leaf + 1}) - before).max() > 1e-3
    huge = np.full((T, B), 2**30, np.int32)
    assert np.abs(value({**seen.observation, "n": huge})).max() < 1e3


def test_state_holds_only_what_the_network_needs() -> None:
    assert initial_state(NetworkConfig(), spec(5), B) == {}
    state = initial_state(NetworkConfig(frame_stack=4), with_action(IMAGE), B)
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in state.items()} == {
        "frames": ((B, 3, 36, 40), BYTE)
    }
    lstm = initial_state(NetworkConfig(core="lstm", core_size=8), spec(5), B)["lstm"]
    assert [(leaf.shape, leaf.dtype) for leaf in lstm] == [((B, 8), FLOAT)] * 2


def test_a_time_axis_of_one_is_added_in_front() -> None:
    assert add_time({"a": jnp.zeros((B, 2))})["a"].shape == (1, B, 2)
