"""What a config refuses, what it says then, and that it survives a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sebulba import (
    CheckpointConfig,
    Config,
    ConfigError,
    NetworkConfig,
    OptimizerConfig,
    PPOConfig,
    PQNConfig,
    R2D2Config,
    ReplayCheckpointConfig,
    ReplayConfig,
    VTraceConfig,
    algorithms,
    presets,
)
from sebulba.config import fields_from_json, to_json


def saved(config: Config) -> str:
    """The config as a run directory holds it."""
    return to_json(config, algorithms.of(config).name)


def loaded(text: str) -> Config:
    """What ``saved`` wrote."""
    return algorithms.from_fields(*fields_from_json(text))


def changed(path: str, value: Any, config: Config) -> Config:
    outer, _, inner = path.rpartition(".")
    if outer:
        path, value = outer, dataclasses.replace(getattr(config, outer), **{inner: value})
    return dataclasses.replace(config, **{path: value})


WHOLE = "must be a whole number above 0"
ABOVE_0 = "must be a finite number above 0"
REFUSED = [
    *((name, value, WHOLE) for name in ("total_steps", "queue_size") for value in (0, -1, 1.5)),
    ("actors_per_device", -1, "must be a whole number, 0 or more"),
    ("actors_per_device", 0, "must be above 0 without remote_lanes"),
    ("remote_lanes", -1, "must be a whole number, 0 or more"),
    ("envs_per_actor", 0, WHOLE),
    ("unroll_length", 0, WHOLE),
    ("batch_size", 0, WHOLE),
    ("num_microbatches", 0, f"{WHOLE}, or None"),
    ("log_every", 0, WHOLE),
    ("checkpoint.interval", 0, WHOLE),
    ("checkpoint.max_to_keep", 0, WHOLE),
    ("network.core_size", 0, WHOLE),
    ("network.frame_stack", 0, WHOLE),
    ("network.hidden_sizes", (64, 0), "must be a tuple of whole numbers above 0"),
    ("optimizer.learning_rate", 0.0, ABOVE_0),
    ("optimizer.learning_rate", float("nan"), ABOVE_0),
    ("optimizer.max_gradient_norm", -1.0, ABOVE_0),
    ("optimizer.epsilon", 0.0, ABOVE_0),
    ("network.pixels", "normalized", "must be scaled for the torso mlp"),
    ("network.channels", (32, 64), "must be (16, 32, 32) for the torso mlp"),
    ("network.num_blocks", 3, "must be 2 for the torso mlp"),
    ("network.activation", "gelu", "must be one of ['relu', 'tanh']"),
    ("network.initial_log_std", float("inf"), "must be a number from -5 to 2"),
    ("optimizer.rms_decay", 1.0, "must be a number from 0 to below 1"),
    ("optimizer.name", "Adam", "must be one of ['rmsprop', 'adam', 'radam']"),
    ("network.core", "LSTM", "must be one of ['none', 'lstm']"),
    ("network.torso", "Deep", "must be one of ['mlp', 'small', 'shallow', 'deep']"),
    ("placement", "Shared", "must be one of ['split', 'shared']"),
    ("policy_lag", 0, "must be one of ['any', '0', '1']"),
    ("atari_protocol", "ALE", "must be one of ['machado', 'impala']"),
    ("seed", -1, "must be a whole number from 0 to 2**32 - 1"),
    ("seed", 2**32, "must be a whole number from 0 to 2**32 - 1"),
    ("env_threads", -1, "must be a whole number, 0 or more"),
    ("num_inference_devices", 0, f"{WHOLE}, or None"),
    ("discount", 1.01, "must be a number from 0 to 1"),
    ("lambda_", -0.1, "must be a number from 0 to 1"),
    ("clip_rho", 0.0, ABOVE_0),
    ("clip_c", 0.0, ABOVE_0),
    ("clip_pg_rho", -1.0, ABOVE_0),
    ("reward_scale", 0.0, ABOVE_0),
    ("baseline_cost", -0.5, "must be a finite number, 0 or more"),
    ("entropy_cost", -0.5, "must be a finite number, 0 or more"),
    ("num_inference_devices", 1.5, f"{WHOLE}, or None"),
    ("reward_clip", 0.0, f"{ABOVE_0}, or None"),
    ("seed", 1.5, "must be a whole number"),
    ("seed", "3", "must be a whole number"),
    ("actors_per_device", True, "must be a whole number, 0 or more"),
    ("env_threads", 0.0, "must be a whole number"),
    ("reward_scale", float("inf"), ABOVE_0),
    ("reward_scale", "1", ABOVE_0),
    ("reward_clip", "1", ABOVE_0),
    ("discount", "0.9", "must be a number from 0 to 1"),
    ("discount", True, "must be a number from 0 to 1"),
    ("entropy_cost", None, "must be a finite number"),
    ("batch_size", "32", WHOLE),
    ("network.hidden_sizes", 64, "must be a tuple of whole numbers above 0"),
    ("network.hidden_sizes", (64.0,), "must be a tuple of whole numbers above 0"),
    ("resume", "no", "must be True or False"),
    ("optimizer.decay_to_zero", 1, "must be True or False"),
    ("env", 3, "must be a string"),
    ("env_options", {"f": print}, "must be a dict, with strings as its keys"),
    ("env_options", {"w": {0: 1}}, "must be a dict, with strings as its keys"),
    ("env_options", {"dtype": np.float32}, "must be a dict, with strings as its keys"),
    ("env_options", {"x": float("nan")}, "must be a dict"),
    ("env_options", None, "must be a dict"),
    ("network", {"torso": "mlp"}, "must be a NetworkConfig"),
]


REFUSED_OF_R2D2 = [
    ("sequence_length", 0, WHOLE),
    ("burn_in", -1, "must be a whole number, 0 or more"),
    ("n_step", 0, WHOLE),
    ("target_update_period", 0, WHOLE),
    ("epsilon_base", 1.5, "must be a number from 0 to 1"),
    ("epsilon_alpha", 0.0, ABOVE_0),
    ("evaluation_epsilon", -0.1, "must be a number from 0 to 1"),
    ("replay.capacity", 0, WHOLE),
    ("replay.min_size", 0, WHOLE),
    ("replay.min_size", 100_001, "must be at most replay.capacity (100000)"),
    ("replay.samples_per_insert", 0.0, ABOVE_0),
    ("replay.storage", "disk", "must be one of ['host', 'device']"),
    ("replay.priority_eta", 1.1, "must be a number from 0 to 1"),
    ("checkpoint.interval", 0, WHOLE),
    ("checkpoint", CheckpointConfig(), "must be a ReplayCheckpointConfig"),
]


REFUSED_OF_PPO = [
    ("num_epochs", 0, WHOLE),
    ("num_minibatches", 0, WHOLE),
    ("num_minibatches", 3, "must divide batch_size * unroll_length (4096)"),
    ("clip_ratio", 0.0, ABOVE_0),
    ("clip_value", 0.0, f"{ABOVE_0}, or None"),
    ("target_kl", -0.01, f"{ABOVE_0}, or None"),
    ("normalize_advantages", 1, "must be True or False"),
]


REFUSED_WITHOUT_A_POLICY = [
    ("network.squash", "clip", "must be tanh for "),
    ("network.initial_log_std", -1.0, "must be 0.0 for "),
]


REFUSED_OF_PQN = [
    ("num_minibatches", 3, "must divide batch_size * unroll_length (1024)"),
    ("epsilon_start", 1.1, "must be a number from 0 to 1"),
    ("epsilon_end", -0.1, "must be a number from 0 to 1"),
    ("exploration_fraction", 2.0, "must be a number from 0 to 1"),
    ("evaluation_epsilon", -0.1, "must be a number from 0 to 1"),
]


@pytest.mark.parametrize(
    ("config", "path", "value", "rule"),
    [
        *((VTraceConfig(), *case) for case in REFUSED),
        *((R2D2Config(), *case) for case in REFUSED_OF_R2D2),
        *((PPOConfig(), *case) for case in REFUSED_OF_PPO),
        *((PQNConfig(), *case) for case in REFUSED_OF_PQN),
        *((kind(), *case) for kind in (PQNConfig, R2D2Config) for case in REFUSED_WITHOUT_A_POLICY),
    ],
)
def test_a_refusal_says_the_value_the_rule_and_the_flag(
    config: Config, path: str, value: Any, rule: str
) -> None:
    with pytest.raises(ConfigError) as error:
        changed(path, value, config).validate()
    message = str(error.value)
    flag = "--" + path.replace("_", "-").rstrip("-")
    assert message.startswith(f"{path} is {value!r}: it {rule}")
    assert message.endswith(f", on the command line with {flag}.")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (PQNConfig(network=NetworkConfig(separate_value=True)), "no-separate-value"),
        (R2D2Config(network=NetworkConfig(separate_value=True)), "no-separate-value"),
        (R2D2Config(network=NetworkConfig(state_dependent_std=True)), "no-state-dependent-std"),
        (PQNConfig(network=NetworkConfig(torso="deep", layer_norm=True)), "no-layer-norm"),
    ],
)
def test_what_must_be_false_is_turned_off(config: Config, says: str) -> None:
    with pytest.raises(ConfigError, match=f"is True: .* command line with --network.{says}"):
        config.validate()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"burn_in": 79}, r"burn_in is 79: it must be from 0 to sequence_length - 2 \(78\)"),
        ({"burn_in": -1}, "burn_in is -1"),
        ({"unroll_length": 1}, "unroll_length is 1: it must be above 1"),
        ({"unroll_length": 30}, r"sequence_length is 80: it must be a multiple .*\(30\)"),
    ],
)
def test_every_sequence_has_an_error_to_learn_from(changes: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        R2D2Config(**changes).validate()
    R2D2Config(burn_in=78).validate()


@pytest.mark.parametrize(
    ("kind", "network", "says"),
    [
        (VTraceConfig, {"torso": "small", "activation": "tanh"}, "must be relu for .* small"),
        (VTraceConfig, {"torso": "deep", "layer_norm": True}, "must be False for the torso deep"),
        (VTraceConfig, {"core": "lstm", "separate_value": True}, "must be False with .* lstm"),
        (R2D2Config, {"separate_value": True}, "must be False for R2D2, which has no policy"),
    ],
)
def test_networks_that_do_not_go_together(
    kind: type[Config], network: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        kind(network=NetworkConfig(**network)).validate()


def test_minibatches_of_an_lstm_are_of_whole_trajectories() -> None:
    config = PPOConfig(network=NetworkConfig(core="lstm"), batch_size=32, num_minibatches=8)
    config.validate()
    with pytest.raises(ConfigError, match=r"minibatches is 64: it must divide batch_size \(32\)"):
        dataclasses.replace(config, num_minibatches=64).validate()


def test_devices_that_do_both_leave_none_that_only_act() -> None:
    config = VTraceConfig(placement="shared", num_inference_devices=2)
    with pytest.raises(ConfigError, match=r"num_inference_devices is 2: it must be None .*shared"):
        config.validate()


@pytest.mark.parametrize(
    ("batch_size", "envs_per_actor", "remedy"), [(33, 32, 32), (31, 32, 32), (100, 32, 96)]
)
def test_an_update_takes_whole_trajectories(
    batch_size: int, envs_per_actor: int, remedy: int
) -> None:
    config = VTraceConfig(batch_size=batch_size, envs_per_actor=envs_per_actor)
    expected = f"batch_size {batch_size} is not .* {envs_per_actor}: .* Make it {remedy}, or"
    with pytest.raises(ConfigError, match=expected):
        algorithms.VTRACE.unrolls_per_turn(config)
    assert algorithms.VTRACE.unrolls_per_turn(dataclasses.replace(config, batch_size=remedy))


EDGES = [
    VTraceConfig(seed=2**32 - 1, num_inference_devices=1, total_steps=1, reward_clip=0.5),
    VTraceConfig(discount=0.0, lambda_=1.0, baseline_cost=0.0, entropy_cost=0.0),
    VTraceConfig(network=NetworkConfig(hidden_sizes=())),
    *(config for config, _ in presets.PRESETS.values()),
]


@pytest.mark.parametrize("config", EDGES)
def test_what_can_work_is_accepted(config: Config) -> None:
    config.validate()
    assert algorithms.of(config).unrolls_per_turn(config) > 0


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        VTraceConfig().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "config",
    [
        VTraceConfig(
            preset="p",
            env_options={"repeat_action_probability": 0.25, "full": True, "n": 3, "name": "x"},
            out=Path("runs/some where"),
            resume=True,
            num_inference_devices=2,
            reward_clip=1.0,
            policy_lag="1",
            network=NetworkConfig(torso="deep", hidden_sizes=(3, 4), core="lstm"),
            optimizer=OptimizerConfig(name="adam", epsilon=2.5e-9),
            checkpoint=CheckpointConfig(interval=7, max_to_keep=9),
        ),
        *EDGES,
    ],
)
def test_json_round_trip(config: Config) -> None:
    text = saved(config)
    back = loaded(text)
    assert back == config and type(back) is type(config)
    assert saved(back) == text
    assert json.loads(text)["algorithm"] == algorithms.of(config).name


def test_numbers_of_numpy_become_those_of_python() -> None:
    """Their types would be lost in JSON, which the run is resumed from."""
    config = R2D2Config(
        seed=np.int64(3),  # type: ignore[arg-type]
        batch_size=np.int64(64),  # type: ignore[arg-type]
        resume=np.bool_(True),  # type: ignore[arg-type]
        discount=np.float32(0.5),  # type: ignore[arg-type]
        env_options={"n": np.int8(3), "few": [np.float64(0.5), (np.uint8(1),)]},  # type: ignore
        network=NetworkConfig(hidden_sizes=np.array([3, 4])),  # type: ignore[arg-type]
        optimizer=OptimizerConfig(learning_rate=np.float64(0.25)),
        replay=ReplayConfig(capacity=np.uint32(9_000)),  # type: ignore[arg-type]
        checkpoint=ReplayCheckpointConfig(interval=np.int32(7)),  # type: ignore[arg-type]
    )
    config.validate()
    assert (
        loaded(saved(config))
        == config
        == R2D2Config(
            seed=3,
            batch_size=64,
            resume=True,
            discount=0.5,
            env_options={"n": 3, "few": [0.5, [1]]},  # type: ignore[dict-item]
            network=NetworkConfig(hidden_sizes=(3, 4)),
            optimizer=OptimizerConfig(learning_rate=0.25),
            replay=ReplayConfig(capacity=9_000),
            checkpoint=ReplayCheckpointConfig(interval=7),
        )
    )
    assert type(config.seed) is int and type(config.optimizer.learning_rate) is float


def test_a_list_is_the_tuple_that_comes_back_from_the_file() -> None:
    network = NetworkConfig(hidden_sizes=[3, 4])  # type: ignore[arg-type]
    assert network == NetworkConfig(hidden_sizes=(3, 4))


def test_an_unknown_algorithm_is_named() -> None:
    text = to_json(VTraceConfig(), "other")
    with pytest.raises(ConfigError, match=r"'other' is unknown.*'vtrace'"):
        loaded(text)


@pytest.mark.parametrize("text", ["", '{"algorithm": "vtr', "3"])
def test_what_is_no_config_is_called_damaged(text: str) -> None:
    with pytest.raises(ConfigError, match="the saved config is damaged"):
        loaded(text)


@pytest.mark.parametrize(("where", "kind"), [((), "VTraceConfig"), (("network",), "NetworkConfig")])
def test_fields_of_another_version_are_named(where: tuple[str, ...], kind: str) -> None:
    fields = json.loads(saved(VTraceConfig()))
    inner = fields
    for name in where:
        inner = inner[name]
    inner["novelty"] = 1
    with pytest.raises(ConfigError, match=rf"\['novelty'\], which {kind} lacks"):
        loaded(json.dumps(fields))


def test_a_field_that_an_older_version_lacked_has_its_default() -> None:
    fields = json.loads(saved(VTraceConfig(seed=3)))
    del fields["queue_size"], fields["network"]["dtype"]
    assert loaded(json.dumps(fields)) == VTraceConfig(seed=3)
