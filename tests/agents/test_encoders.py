"""How networks see images and other arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_parts import (
    BYTE,
    FLOAT,
    SMALLEST,
    B,
    close,
    grown,
    make_agent,
    slow_stacks,
    spec,
    timesteps,
)

from sebulba import ConfigError, NetworkConfig, PolicyAgent, VTraceConfig, algorithms
from sebulba.agents import distributions, reference
from sebulba.agents.torsos import torso as make_torso
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec


def test_pixels_are_scaled_and_stacked_frames_are_channels() -> None:
    """A stack of four frames is the same to the network as an image of four channels."""
    stacking = make_agent(SMALLEST, torso="small", frame_stack=4)
    plain = make_agent(spec(20, 22, 4, dtype=BYTE), torso="small")
    params = grown(plain)
    seen = timesteps(SMALLEST, length=4)
    frames = np.random.default_rng(0).integers(0, 256, seen.observation.shape).astype(np.uint8)
    seen = seen._replace(observation=frames)
    got, _ = jax.jit(stacking.unroll)(params, seen, stacking.initial_state(B))
    stacks = slow_stacks(frames, seen.first, 4)
    expected, _ = jax.jit(plain.unroll)(params, seen._replace(observation=stacks), {})
    close(got, expected)
    as_floats = seen._replace(observation=stacks.astype(np.float32) / 255)
    close(jax.jit(plain.unroll)(params, as_floats, {})[0], expected)


def test_moving_pixels_stay_visible_in_the_features() -> None:
    """With half the variance, every second layer would shrink them by half."""
    torso = make_torso(NetworkConfig(torso="shallow", hidden_sizes=(128,)), FLOAT)
    images = jnp.zeros((1, 36, 40, 4), jnp.uint8)
    params = jax.jit(torso.init)(jax.random.key(0), images)["params"]
    assert len(params) == 4
    for name, layer in params.items():
        fan_in = np.prod(layer["kernel"].shape[:-1])
        assert np.var(layer["kernel"]) == pytest.approx(2 / fan_in, rel=0.1), name


@pytest.mark.parametrize(
    ("torso", "stacked"), [("small", True), ("small", False), ("deep", True), ("deep", False)]
)
def test_normalized_pixels_have_mean_0_and_variance_1(torso: str, stacked: bool) -> None:
    images = SMALLEST if stacked else spec(20, 22, 3, dtype=BYTE)
    frame_stack = 4 if stacked else 1
    agent = make_agent(images, torso=torso, frame_stack=frame_stack, pixels="normalized")
    params, seen = grown(agent, gain=1.2), timesteps(images, length=4)
    rng = np.random.default_rng(0)
    frames = rng.integers(60, 200, seen.observation.shape).astype(np.uint8)
    frames[:, 0] = 0 if stacked else 77  # Of one color.
    seen = seen._replace(observation=frames)
    got, _ = jax.jit(agent.unroll)(params, seen, agent.initial_state(B))
    shown = (slow_stacks(frames, seen.first, 4) if stacked else frames).astype(np.float64)
    mean, deviation = (f(shown, axis=(2, 3, 4), keepdims=True) for f in (np.mean, np.std))
    assert deviation.min() == 0
    read = ((shown - mean) / np.maximum(deviation, 10)).astype(np.float32)
    on_floats = make_agent(spec(20, 22, shown.shape[-1]), torso=torso)
    expected, _ = jax.jit(on_floats.unroll)(params, seen._replace(observation=read), {})
    close(got, expected, atol=1e-4)
    assert np.ptp(got.value) > 1


def test_only_bytes_are_normalized() -> None:
    network = NetworkConfig(torso="small", pixels="normalized")
    config = VTraceConfig(network=network)
    assert algorithms.VTRACE.make_agent(config, spec(36, 40, 3, dtype=BYTE), "training")
    with pytest.raises(ConfigError, match=r"observes float32: only .*uint8.* --network.pixels sca"):
        algorithms.VTRACE.make_agent(config, spec(36, 40, 3), "training")


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_convolutions_of_any_image_are_done_in_the_given_type(dtype: Any) -> None:
    config = NetworkConfig(torso="small", hidden_sizes=(8,), dtype="bfloat16")
    torso = make_torso(config, jnp.dtype("bfloat16"))
    images = jnp.zeros((2, 42, 42, 3), dtype)
    params = jax.eval_shape(torso.init, jax.random.key(0), images)
    _, seen = jax.eval_shape(partial(torso.apply, capture_intermediates=True), params, images)
    results = jax.tree.leaves(seen)
    assert len(results) > 3 and {leaf.dtype for leaf in results} == {jnp.dtype("bfloat16")}


@pytest.mark.slow
def test_each_array_has_an_encoder_that_fits_its_shape() -> None:
    """Images go through convolutions, whatever else there is through an MLP, and all count."""
    observation = {
        "camera": ArraySpec((40, 48, 3), np.dtype(np.uint8)),
        "body": {"speed": ArraySpec((2,), np.dtype(np.float32))},
        "map": ArraySpec((36, 36), np.dtype(np.uint8)),
        "grid": ArraySpec((7, 7, 3), np.dtype(np.uint8)),
    }
    spec = EnvSpec(observation, DiscreteSpec(3), num_envs=2)
    config = NetworkConfig(torso="small", hidden_sizes=(8,))
    reference.check_spec(config, spec, "here")
    agent = PolicyAgent(config, spec, distributions.make(spec.action))
    params = agent.init(jax.random.key(0))
    assert {"torso", "torso_camera", "torso_map"} < set(params)
    assert params["torso"]["Dense_0"]["kernel"].shape == (2 + 7 * 7 * 3, 8)
    rng = np.random.default_rng(0)
    timestep = reference.zero_timestep(spec, (1, 2))._replace(
        observation=jax.tree.map(
            lambda array: rng.integers(0, 200, (1, 2, *array.shape)).astype(array.dtype),
            observation,
        )
    )
    before, _ = agent.unroll(params, timestep, agent.initial_state(2))
    leaves, tree = jax.tree.flatten(timestep.observation)
    for index in range(len(leaves)):
        other = [leaf + (index == i) * 50 for i, leaf in enumerate(leaves)]
        changed = timestep._replace(observation=jax.tree.unflatten(tree, other))
        after, _ = agent.unroll(params, changed, agent.initial_state(2))
        assert (before.value != after.value).all(), index


def test_pixels_in_a_row_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"Pong: The observation is 7,056 bytes in a row.*torso"):
        reference.check_spec(NetworkConfig(torso="mlp"), spec(7056, dtype=BYTE), "Pong")
    reference.check_spec(NetworkConfig(torso="mlp"), spec(128, dtype=BYTE), "Pong-ram")


@pytest.mark.parametrize("torso", ["mlp", "small"])
@pytest.mark.parametrize("nested", [False, True])
def test_images_whose_channels_are_first_are_refused(torso: Any, nested: bool) -> None:
    """An MLP would take their pixels one by one."""
    for shape in ((4, 84, 84), (3, 40, 36)):
        array = ArraySpec(shape, BYTE)
        observation = {"camera": array, "map": ArraySpec((40, 40), BYTE)} if nested else array
        with pytest.raises(ConfigError, match=r"in front: .*TransformObservation.*frame-stack 4"):
            reference.check_spec(
                NetworkConfig(torso=torso), spec(2)._replace(observation=observation), "Pong"
            )
    # A board is none, nor are floats.
    for other in (spec(3, 8, 8, dtype=BYTE), spec(4, 84, 84)):
        reference.check_spec(NetworkConfig(torso="mlp"), other, "here")


def test_without_floats_there_is_nothing_to_normalize() -> None:
    with pytest.raises(ConfigError, match="Pong observes no floats: there is nothing to normalize"):
        network = NetworkConfig(torso="small", normalize_observations=True)
        reference.check_spec(network, spec(84, 84, dtype=BYTE), "Pong")
