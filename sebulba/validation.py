"""What a config must hold to, whatever the devices and the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from sebulba.config import Config, ConfigError, R2D2Config, VTraceConfig


class Rule(NamedTuple):
    """Of one value: whether it may be so, and the rule in words."""

    holds: Callable[[Any], bool]
    says: str


_COUNT = Rule(lambda x: isinstance(x, int) and x > 0, "must be a whole number above 0")
_COUNT_OR_NONE = Rule(lambda x: x is None or _COUNT.holds(x), f"{_COUNT.says}, or None")
_POSITIVE = Rule(lambda x: x > 0, "must be above 0")
_NOT_NEGATIVE = Rule(lambda x: x >= 0, "must be 0 or more")
_SHARE = Rule(lambda x: 0 <= x <= 1, "must be from 0 to 1")
_LIMIT = Rule(lambda x: x is None or x > 0, "must be above 0, or None for no clipping")

_ALL: Mapping[str, Rule] = {
    "total_steps": _COUNT,
    "actors_per_device": _COUNT,
    "envs_per_actor": _COUNT,
    "unroll_length": _COUNT,
    "batch_size": _COUNT,
    "queue_size": _COUNT,
    "log_every": _COUNT,
    "checkpoint.every": _COUNT,
    "checkpoint.keep": _COUNT,
    "network.core_size": _COUNT,
    "network.frame_stack": _COUNT,
    "network.hidden_sizes": Rule(lambda sizes: min(sizes, default=1) > 0, "must all be above 0"),
    "optimiser.learning_rate": _POSITIVE,
    "optimiser.max_gradient_norm": _POSITIVE,
    "optimiser.epsilon": _POSITIVE,
    "optimiser.rms_decay": Rule(lambda x: 0 <= x < 1, "must be from 0 to below 1"),
    "seed": Rule(lambda x: 0 <= x < 2**32, "must be from 0 to 2**32 - 1"),
    "env_threads": _NOT_NEGATIVE,
    "gradient_accumulation": _COUNT_OR_NONE,
    "num_inference": _COUNT_OR_NONE,
}
_VTRACE: Mapping[str, Rule] = {
    "discount": _SHARE,
    "lambda_": _SHARE,
    "clip_rho": _POSITIVE,
    "clip_c": _POSITIVE,
    "clip_pg_rho": _POSITIVE,
    "baseline_cost": _NOT_NEGATIVE,
    "entropy_cost": _NOT_NEGATIVE,
    "reward_clip": _LIMIT,
    "reward_scale": _POSITIVE,
}
_R2D2: Mapping[str, Rule] = {
    "sequence_length": _COUNT,
    "sequences_per_update": _COUNT,
    "n_step": _COUNT,
    "target_update": _COUNT,
    "discount": _SHARE,
    "reward_clip": _LIMIT,
    "epsilon_base": _SHARE,
    "epsilon_alpha": _POSITIVE,
    "evaluation_epsilon": _SHARE,
    "replay.capacity": _COUNT,
    "replay.min_size": _COUNT,
    "replay.ratio": _POSITIVE,
    "replay.priority_exponent": _SHARE,
    "replay.importance_exponent": _SHARE,
    "replay.priority_eta": _SHARE,
}


def validate(config: Config) -> None:
    """Refuse values that can never work.

    Raises:
      ConfigError: naming the field, its value, the rule and the remedy.
    """
    rules = {**_choices(type(config)), **_ALL}
    if isinstance(config, VTraceConfig):
        rules |= _VTRACE
    if isinstance(config, R2D2Config):
        rules |= _R2D2
    for name, rule in rules.items():
        _require(config, name, rule.holds(_get(config, name)), rule.says)
    _check_together(config)
    if isinstance(config, R2D2Config):
        _check_sequences(config)


def _check_together(config: Config) -> None:
    _require(
        config,
        "network.pixels",
        config.network.pixels == "scaled" or config.network.torso != "mlp",
        "must be scaled for the torso mlp, which has no convolutions",
    )
    _require(
        config,
        "num_inference",
        config.num_inference is None or config.placement == "split",
        "must be None where every device acts and learns (placement shared)",
    )
    if config.batch_size % config.envs_per_actor:
        raise ConfigError(
            f"batch_size {config.batch_size} is not a multiple of envs_per_actor "
            f"{config.envs_per_actor}: an update takes whole trajectories of its actors. Make it "
            f"{max(1, config.batch_size // config.envs_per_actor) * config.envs_per_actor}, or "
            "change envs_per_actor."
        )


def _check_sequences(config: R2D2Config) -> None:
    _require(
        config,
        "sequence_length",
        config.sequence_length % config.unroll_length == 0,
        f"must be a multiple of unroll_length ({config.unroll_length}), whose starts it shares",
    )
    # The last step of an unroll has no TD error at collection, so no priority either.
    _require(config, "unroll_length", config.unroll_length > 1, "must be above 1 for R2D2")
    _require(
        config,
        "burn_in",
        0 <= config.burn_in <= config.sequence_length - 2,
        f"must be from 0 to sequence_length - 2 ({config.sequence_length - 2})",
    )
    _require(
        config,
        "replay.min_size",
        config.replay.min_size <= config.replay.capacity,
        f"must be at most replay.capacity ({config.replay.capacity})",
    )


def _choices(kind: type[Any]) -> dict[str, Rule]:
    """Fields that take one of a few values, those of nested configs by dotted names."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        if get_origin(hint) is Literal:
            values = get_args(hint)
            found[name] = Rule(values.__contains__, f"must be one of {list(values)}")
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found |= {f"{name}.{inner}": rule for inner, rule in _choices(hint).items()}
    return found


def _get(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return config


def _require(config: Config, name: str, holds: bool, rule: str) -> None:
    if not holds:
        flag = "--" + name.replace("_", "-").rstrip("-")
        raise ConfigError(f"{name} is {_get(config, name)!r}: it {rule}. Set it with {flag}.")
