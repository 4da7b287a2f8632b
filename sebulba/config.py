"""Configuration: frozen dataclasses, from which the command line is generated.

The docstring of a field is its help text on the command line. A config never changes during a
run. The config class of each algorithm is in the file of its learner.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sebulba.validation import (
    ConfigError,
    Count,
    Counts,
    Fields,
    LogStd,
    NotNegative,
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
class NetworkConfig(Fields):
    """The reference network: a torso, an optional recurrent core, and heads."""

    torso: Literal["mlp", "small", "shallow", "deep"] = "mlp"
    """mlp: dense layers; small: 2 convolutions (Mnih et al. 2016; the small network of Espeholt et
    al. 2018, figure 3); shallow: 3 convolutions (Mnih et al. 2015); deep: a residual network of 15
    convolutions (Espeholt et al. 2018, figure 3)."""
    hidden_sizes: Counts = (64, 64)
    """Sizes of the dense layers, which follow the convolutions if there are any."""
    channels: Counts = (16, 32, 32)
    """deep: channels of the convolutions in each section of the network. Each section halves height
    and width."""
    num_blocks: Count = 2
    """deep: residual blocks in each section, with two convolutions in each block."""
    activation: Literal["relu", "tanh"] = "relu"
    """mlp: the function after each dense layer. With tanh, layers begin with orthogonal weights."""
    layer_norm: bool = False
    """Normalize the outputs of each layer before its activation: those of a dense layer to mean 0
    and variance 1, and those of a convolution so at each pixel. Not for deep."""
    separate_value: bool = False
    """Whether the value has layers of its own, of the same sizes as those of the policy."""
    core: Literal["none", "lstm"] = "none"
    """lstm: an LSTM that also takes the last action and reward as inputs."""
    core_size: Count = 256
    """Units of the LSTM, and with R2D2 of the hidden layer in each of its two heads."""
    frame_stack: Count = 1
    """How many of the last frames the network sees. They are stacked on the device, and cleared at
    the start of an episode."""
    pixels: Literal["scaled", "normalized"] = "scaled"
    """How convolutions read uint8 images. scaled: divided by 255; normalized: minus the mean of the
    observation (over all stacked frames), divided by its standard deviation (at least 10)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the network computes; parameters and losses stay float32."""
    normalize_observations: bool = False
    """Normalize floats in observations by their running mean and variance, which are part of the
    parameters. Images are not concerned: see pixels."""
    squash: Literal["tanh", "clip"] = "tanh"
    """How a Gaussian sample is brought into the bounds of a continuous action."""
    state_dependent_std: bool = False
    """Whether the standard deviation of continuous actions is an output of the network. Otherwise
    each is one number that is learned, the same in all states."""
    initial_log_std: LogStd = 0.0
    """Logarithm of the first standard deviation of continuous actions, before they are squashed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Fields):
    """Gradient clipping, then RMSProp, Adam or RAdam, with a learning rate that may decay."""

    name: Literal["rmsprop", "adam", "radam"] = "rmsprop"
    """radam: Adam with a warm-up that follows from the variance of its steps (Liu et al. 2020)."""
    learning_rate: Positive = 6e-4
    """At the start of training."""
    decay_to_zero: bool = True
    """Decay the learning rate linearly to 0 at total_steps."""
    epsilon: Positive = 1e-8
    """rmsprop: added to the mean square before taking its root; adam, radam: added to the root."""
    rms_decay: ShareBelow1 = 0.99
    """rmsprop: decay of the mean square."""
    max_gradient_norm: Positive = 0.5
    """Gradients with a larger global norm are scaled down to this one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Fields):
    """When checkpoints are written, and how many are kept."""

    interval: Count = 1000
    """Turns (see --log-every) between checkpoints. The end of the run writes one more."""
    max_to_keep: Count = 3
    """How many checkpoints to keep: the newest ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Fields):
    """Whole episodes that are played while training goes on, in environments of their own."""

    interval: NotNegativeInt = 0
    """Agent steps between evaluations; 0: none. The last one is of the final parameters. The
    parameters whose mean return was best are kept."""
    episodes: Count = 32
    """How many whole episodes. Up to 32 are played at once."""
    max_steps: OptionalCount = None
    """Agent steps after which an episode is cut off. None: as many as make 108,000 frames."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Fields):
    """The options that all algorithms share."""

    preset: str = ""
    """Name of the preset that this config came from."""
    env: str = "CartPole-v1"
    """An id of EnvPool, sebulba/Catch, sebulba/Memory, a name given to envs.register,
    gymnasium:ID, ale:GAME, dm_env:MODULE:NAME, or MODULE:NAME of your own make_env(num_envs, seed).
    """
    env_options: dict[str, Option] = dataclasses.field(default_factory=dict)
    """Options of the environment: KEY VALUE [KEY VALUE ...]. Those of the preset that are not named
    stay as they are."""
    atari_protocol: Literal["machado", "impala"] = "machado"
    """machado: sticky actions, all 18 actions; impala: no sticky actions, only the actions that the
    game uses, and losing a life counts as termination."""
    total_steps: Count = 500_000
    """Agent steps to train for, over all hosts. The frames are this times the frame skip."""
    seed: Seed = 0
    """Of parameters, environments, exploration and replay."""
    out: Path | None = None
    """The run directory. From Python, None writes nothing."""
    resume: bool = False
    """Continue from the last complete checkpoint in the run directory."""
    placement: Literal["split", "shared"] = "split"
    """split: some devices of each host act and the others learn; shared: each does both."""
    num_inference_devices: OptionalCount = None
    """Devices of each host that only act. None: a quarter of them, or the next larger number with
    which the learner devices divide envs_per_actor. The only device of a host does both."""
    actors_per_device: NotNegativeInt = 2
    """Actor threads for each inference device. Each has its own environments on this host. 0 only
    with --remote-lanes."""
    remote_lanes: NotNegativeInt = 0
    """Remote lanes: more actors of each host, whose environments are on other machines. See
    --listen."""
    envs_per_actor: Count = 32
    """B: environments that one actor steps together."""
    env_threads: NotNegativeInt = 0
    """Threads of EnvPool or ale-py for each actor; other environments have none. 0: the host's CPU
    cores are divided among its actors."""
    unroll_length: Count = 20
    """T: steps of one trajectory."""
    batch_size: Count = 32
    """Trajectories that one update learns from, on each host: a multiple of envs_per_actor. R2D2:
    sequences drawn from the replay."""
    num_microbatches: OptionalCount = None
    """Number of parts in which each gradient is computed. A device that also acts can act between
    them. None: 1, but for convolutions on CPUs as many as make each part fit in the cache, unless
    there is an LSTM or the algorithm is R2D2."""
    queue_size: Count = 1
    """How many finished unrolls of an actor can wait for the learner; each has a trajectory of each
    of its environments. When there are more, the actor waits."""
    policy_lag: Literal["any", "0", "1"] = "any"
    """Which parameters a trajectory is made with. any: the newest when it starts; 0: those that the
    learner has when it takes the trajectory; 1: those of one turn before (in a turn, the learner
    takes trajectories, updates and publishes parameters). With 0 and 1, the data do not depend on
    timing."""
    log_every: Count = 50
    """Turns between two rows of metrics. In a turn, the learner takes trajectories and makes the
    updates that are due: one, but for R2D2."""
    stall_seconds: NotNegative = 300.0
    """End the run if nothing has moved for so long, and say what stands still; 0: never. Compiling
    may take six times as long."""
    grace_seconds: Positive = 30.0
    """How long nothing may move after Ctrl-C or SIGTERM, before the process ends without another
    checkpoint."""
    network: NetworkConfig = NetworkConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def num_actors(self, num_inference_devices: int) -> int:
        """Actors of a host, those of remote lanes included."""
        return num_inference_devices * self.actors_per_device + self.remote_lanes

    def validate(self) -> None:
        """Check all that can be checked without the devices and the environment.

        A subclass adds its own rules after calling ``super().validate()``.

        Raises:
          ConfigError: a field breaks a rule. The message names the field, its value, the rule and
            the remedy.
        """
        check_fields(self)
        check_is_directory("out", self.out)
        require(
            self,
            "env_options",
            isinstance(self.env_options, dict) and _is_kept_by_json(self.env_options),
            "must be a dict, with strings as its keys, of strings, finite numbers, booleans, None, "
            "and lists and dicts of them, since it is kept in config.json",
        )
        require(
            self,
            "network.pixels",
            self.network.pixels == "scaled" or self.network.torso != "mlp",
            "must be scaled for the torso mlp, which has no convolutions",
        )
        require(
            self,
            "actors_per_device",
            self.actors_per_device + self.remote_lanes > 0,
            "must be above 0 without remote_lanes, which --remote-lanes sets",
        )
        for name in ("channels", "num_blocks"):
            default = getattr(NetworkConfig(), name)
            require(
                self,
                f"network.{name}",
                self.network.torso == "deep" or getattr(self.network, name) == default,
                f"must be {default} for the torso {self.network.torso}: only deep has a choice",
            )
        require(
            self,
            "network.activation",
            self.network.activation == "relu" or self.network.torso == "mlp",
            f"must be relu for the torso {self.network.torso}: only mlp has a choice",
        )
        require(
            self,
            "network.layer_norm",
            not self.network.layer_norm or self.network.torso != "deep",
            "must be False for the torso deep, whose blocks have no place for it",
        )
        require(
            self,
            "network.separate_value",
            not self.network.separate_value or self.network.core == "none",
            "must be False with the core lstm, which policy and value share",
        )
        require(
            self,
            "num_inference_devices",
            self.num_inference_devices is None or self.placement == "split",
            "must be None where every device acts and learns (placement shared)",
        )


def refuse_policies(config: Config, algorithm: str) -> None:
    """Refuse what concerns policies alone, for an algorithm that has none besides its values.

    Raises:
      ConfigError: ``config`` has such an option.
    """
    for name in ("separate_value", "squash", "state_dependent_std", "initial_log_std"):
        default = getattr(NetworkConfig(), name)
        require(
            config,
            f"network.{name}",
            getattr(config.network, name) == default,
            f"must be {default} for {algorithm}, which has no policy besides its values",
        )


def check_is_directory(name: str, path: Path | str | None) -> None:
    """Refuse the address of an object store, which would become a local directory of that name.

    Raises:
      ConfigError: ``path``, which the message calls ``name``, is such an address.
    """
    # A Path has made one slash of the two.
    if path is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise ConfigError(
            f"{name} is {path}: it must be a directory, not the address of an object store. Mount "
            "the bucket, and name the directory where it is mounted. docs/tpu.md says which "
            "buckets work."
        )


def _is_kept_by_json(options: dict[str, Any]) -> bool:
    """Whether ``options`` are the same after they were written and read."""
    try:
        return bool(json.loads(json.dumps(options, allow_nan=False)) == options)
    except (TypeError, ValueError):
        return False


def to_json(config: Config, algorithm: str) -> str:
    """Return all fields of ``config`` and the name of its algorithm, as JSON."""
    fields = {"algorithm": algorithm, **dataclasses.asdict(config)}
    return json.dumps(fields, indent=2, default=str) + "\n"  # str is for the path `out`.


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in one dict, those of groups under dotted names: "network.torso"."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        # The keys of ``env_options`` are no fields.
        if isinstance(value, dict) and name != "env_options":
            found |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            found[name] = value
    return found


def fields_from_json(text: str) -> tuple[str, dict[str, Any]]:
    """Return the algorithm's name and the fields that ``to_json`` wrote.

    Raises:
      ConfigError: ``text`` is not a JSON object.
    """
    try:
        fields = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the saved config is damaged ({error}): restore it, or train again."
        ) from error
    return str(fields.pop("algorithm", None)), fields


def build(kind: type[Any], fields: dict[str, Any]) -> Any:
    """Return a config of class ``kind`` with the fields from ``fields_from_json``.

    Fields that are missing keep their defaults.

    Raises:
      ConfigError: ``kind`` does not have one of the fields. Another version may have written it.
    """
    # The class of a nested config comes from its default, since annotations are only strings here.
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
            value = tuple(value)  # JSON has no tuples.
        elif name == "out" and value is not None:
            value = Path(value)  # The default is None, which does not tell the type.
        built[name] = value
    return kind(**built)


def whole_unrolls(config: Config) -> int:
    """Unrolls in a batch of ``batch_size`` trajectories, ``envs_per_actor`` in each unroll.

    Raises:
      ConfigError: ``batch_size`` is not a multiple of ``envs_per_actor``.
    """
    unrolls, rest = divmod(config.batch_size, config.envs_per_actor)
    if rest:
        raise ConfigError(
            f"batch_size {config.batch_size} is not a multiple of envs_per_actor "
            f"{config.envs_per_actor}: an update takes whole trajectories of its actors. Make it "
            f"{max(1, unrolls) * config.envs_per_actor}, or change envs_per_actor."
        )
    return unrolls
