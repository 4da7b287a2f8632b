"""Configuration: frozen dataclasses, from which the command line is made.

A config never changes during a run. Docstrings of fields are the help of the command line. Each
algorithm has a config class of its own, next to its learner.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from sebulba.validation import (
    ConfigError,
    Count,
    Counts,
    NotNegativeInt,
    OptionalCount,
    Positive,
    Seed,
    ShareBelow1,
    check_fields,
    require,
)

Option = bool | int | float | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The reference network: torso, optional recurrent core, heads."""

    torso: Literal["mlp", "small", "shallow", "deep"] = "mlp"
    """mlp: dense layers; small: two convolutions (Mnih et al. 2016; the small one of Espeholt et
    al. 2018, figure 3); shallow: three (Mnih et al. 2015); deep: residual network of 15
    (Espeholt et al. 2018, figure 3)."""
    hidden_sizes: Counts = (64, 64)
    """Dense layers, after the convolutions where there are any."""
    core: Literal["none", "lstm"] = "none"
    """lstm: a recurrent core that also takes the last action and reward."""
    core_size: Count = 256
    """Units of the LSTM."""
    frame_stack: Count = 1
    """Last frames that the network sees, stacked on the device; cleared at episode starts."""
    pixels: Literal["scaled", "normalized"] = "scaled"
    """How convolutions read uint8 images. scaled: as 0 to 1; normalized: less the mean of the
    observation (all its stacked frames), divided by its standard deviation (at least 10)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the network's arithmetic; parameters and losses stay float32."""
    squash: Literal["tanh", "clip"] = "tanh"
    """How a Gaussian sample is brought into the bounds of a continuous action."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Gradient clipping, then RMSProp or Adam, with a learning rate that may decay linearly."""

    name: Literal["rmsprop", "adam"] = "rmsprop"
    learning_rate: Positive = 6e-4
    decay_to_zero: bool = True
    """Decay the learning rate linearly to 0 over the updates that total_steps nominally take;
    auto-reset steps, which are not counted, let it reach 0 a little early."""
    epsilon: Positive = 1e-8
    """Added to the mean square before the root (rmsprop), or to the root (adam)."""
    rms_decay: ShareBelow1 = 0.99
    max_gradient_norm: Positive = 0.5
    """Gradients are scaled down to this global norm where they exceed it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    interval: Count = 1000
    """Turns of the learner (updates, for V-trace) between checkpoints; one more at the end."""
    max_to_keep: Count = 3
    """Newest checkpoints to keep."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What every algorithm shares."""

    preset: str = ""
    """Name of the preset this config came from."""
    env: str = "CartPole-v1"
    """EnvPool id, or sebulba/Catch, sebulba/Memory."""
    env_options: dict[str, Option] = dataclasses.field(default_factory=dict)
    """Options of the environment: KEY VALUE [KEY VALUE ...]."""
    atari_protocol: Literal["machado", "impala"] = "machado"
    """machado: sticky actions, all 18 actions; impala: minimal actions, life loss ends."""
    total_steps: Count = 500_000
    """Agent steps to train for, over all hosts (frames are steps times the frame skip)."""
    seed: Seed = 0
    out: Path | None = None
    """Run directory (from Python: None writes nothing)."""
    resume: bool = False
    """Go on from the last complete checkpoint in the run directory."""
    placement: Literal["split", "shared"] = "split"
    """split: some devices of each host act and the others learn; shared: each does both."""
    num_inference_devices: OptionalCount = None
    """Devices of each host that only act; None: a quarter, or as many more as let the learners
    divide envs_per_actor. One device is shared."""
    actors_per_device: Count = 2
    """Actor threads for each inference device, each with its own environments."""
    envs_per_actor: Count = 32
    """B: environments stepped together by one actor."""
    env_threads: NotNegativeInt = 0
    """Threads of each actor's EnvPool; 0 shares the host's CPU cores among its actors."""
    unroll_length: Count = 20
    """T: steps of one trajectory."""
    batch_size: Count = 32
    """Trajectories that one update learns from, on each host. V-trace: a multiple of
    envs_per_actor; R2D2: sequences drawn from the replay."""
    num_microbatches: OptionalCount = None
    """Parts in which the gradient of an update is computed, so that acting slips in between.
    None: one, but for V-trace's convolutions on CPUs as many as keep each within the cache."""
    queue_size: Count = 1
    """Trajectories that wait in each actor's lane."""
    policy_lag: Literal["any", "0", "1"] = "any"
    """Turns between acting and learning. any: act on the newest parameters; 0: on exactly those
    that the unroll's own turn starts from; 1: on those of the turn before. With 0 and 1 the data
    do not depend on timing."""
    log_every: Count = 50
    """Turns of the learner (updates, for V-trace) between two lines of metrics."""
    network: NetworkConfig = NetworkConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def validate(self) -> None:
        """Refuse what can never work, whatever the devices and the environment.

        A config class of your own adds its rules after ``super().validate()``.

        Raises:
          ConfigError: naming the field, its value, the rule and the remedy.
        """
        check_fields(self)
        require(
            self,
            "network.pixels",
            self.network.pixels == "scaled" or self.network.torso != "mlp",
            "must be scaled for the torso mlp, which has no convolutions",
        )
        require(
            self,
            "num_inference_devices",
            self.num_inference_devices is None or self.placement == "split",
            "must be None where every device acts and learns (placement shared)",
        )


def to_json(config: Config, algorithm: str) -> str:
    """Everything, resolved, with the name of the algorithm."""
    fields = {"algorithm": algorithm, **dataclasses.asdict(config)}
    return json.dumps(fields, indent=2, default=str) + "\n"


def fields_from_json(text: str) -> tuple[str, dict[str, Any]]:
    """The algorithm's name and the fields that ``to_json`` wrote.

    Raises:
      ConfigError: it is no JSON.
    """
    try:
        fields = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the saved config is damaged ({error}): restore it, or train again."
        ) from error
    return str(fields.pop("algorithm", None)), fields


def build(kind: type[Any], fields: dict[str, Any]) -> Any:
    """A config of class ``kind`` from the fields that ``fields_from_json`` gave.

    Raises:
      ConfigError: an unknown field, as another version may have written.
    """
    defaults = kind()
    unknown = set(fields) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise ConfigError(
            f"the saved config has the fields {sorted(unknown)}, which {kind.__name__} lacks: "
            "use the version of the library that wrote it."
        )
    built = {}
    for name, value in fields.items():
        default = getattr(defaults, name)
        if dataclasses.is_dataclass(default):
            value = build(type(default), value)
        elif isinstance(value, list):
            value = tuple(value)
        elif name == "out" and value is not None:
            value = Path(value)
        built[name] = value
    return kind(**built)
