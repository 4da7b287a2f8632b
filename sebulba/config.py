"""Configuration: frozen dataclasses, from which the command line is made.

A config is never changed at run time. Field docstrings are the command line's help.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

Option = bool | int | float | str


class ConfigError(ValueError):
    """The user asked for something impossible; the message says the value, rule and remedy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The reference network: torso, optional recurrent core, heads."""

    torso: Literal["mlp", "small", "shallow", "deep"] = "mlp"
    """mlp: dense layers; small: two convolutions (Mnih et al. 2016; the small one of Espeholt et
    al. 2018, figure 3); shallow: three (Mnih et al. 2015); deep: residual network of 15
    (Espeholt et al. 2018, figure 3)."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Dense layers, after the convolutions where there are any."""
    core: Literal["none", "lstm"] = "none"
    """lstm: a recurrent core that also takes the last action and reward."""
    core_size: int = 256
    """Units of the LSTM."""
    frame_stack: int = 1
    """Last frames that the network sees, stacked on the device; cleared at episode starts."""
    pixels: Literal["scaled", "standardised"] = "scaled"
    """How convolutions read uint8 images. scaled: as 0 to 1; standardised: less the mean of the
    observation (all its stacked frames), divided by its standard deviation (at least 10)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the network's arithmetic; parameters and losses stay float32."""
    squash: Literal["tanh", "clip"] = "tanh"
    """How a Gaussian sample is brought into the bounds of a continuous action."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """Gradient clipping, then RMSProp or Adam, with a learning rate that may decay linearly."""

    name: Literal["rmsprop", "adam"] = "rmsprop"
    learning_rate: float = 6e-4
    decay_to_zero: bool = True
    """Decay the learning rate linearly to 0 over the updates that total_steps nominally take;
    auto-reset steps, which are not counted, let it reach 0 a little early."""
    epsilon: float = 1e-8
    """Added to the mean square before the root (rmsprop), or to the root (adam)."""
    rms_decay: float = 0.99
    max_gradient_norm: float = 0.5
    """Gradients are scaled down to this global norm where they exceed it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    every: int = 1000
    """Turns of the learner (updates, for V-trace) between checkpoints; one more at the end."""
    keep: int = 3
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
    total_steps: int = 500_000
    """Agent steps to train for, over all hosts (frames are steps times the frame skip)."""
    seed: int = 0
    out: Path | None = None
    """Run directory (from Python: None writes nothing)."""
    resume: bool = False
    """Go on from the last complete checkpoint in the run directory."""
    placement: Literal["split", "shared"] = "split"
    """split: some devices of each host act and the others learn; shared: each does both."""
    num_inference: int | None = None
    """Devices of each host that only act; None: a quarter, or as many more as let the learners
    divide envs_per_actor. One device is shared."""
    averaging: Literal["devices", "hosts"] = "devices"
    """devices: gradients are averaged over the learner devices of all hosts at once (ICI, NCCL);
    hosts: over those of each host, then over the hosts' own network (on TPUs the data-centre
    network), which allows splits that the TPU compiler refuses for several hosts."""
    actors_per_device: int = 2
    """Actor threads for each inference device, each with its own environments."""
    envs_per_actor: int = 32
    """B: environments stepped together by one actor."""
    env_threads: int = 0
    """Threads of each actor's EnvPool; 0 shares the host's CPU cores among its actors."""
    unroll_length: int = 20
    """T: steps of one trajectory."""
    batch_size: int = 32
    """Environments' trajectories that the learner takes in one turn, on each host: a multiple of
    envs_per_actor."""
    gradient_accumulation: int | None = None
    """Pieces in which an update is dispatched, so that acting slips in between. None: one, but for
    V-trace's convolutions on CPUs as many as keep each within the cache."""
    queue_size: int = 1
    """Trajectories that wait in each actor's lane."""
    policy_lag: Literal["none", "0", "1"] = "none"
    """Turns between acting and learning. none: act on the newest parameters; 0: on exactly those
    that the unroll's own turn starts from; 1: on those of the turn before. With 0 and 1 the data
    do not depend on timing."""
    log_every: int = 50
    """Turns of the learner (updates, for V-trace) between two lines of metrics."""
    network: NetworkConfig = NetworkConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class VTraceConfig(Config):
    """IMPALA: V-trace actor-critic (Espeholt et al. 2018).

    The paper sums losses over time and batch; here they are means over T x B. Dividing the
    paper's clipping norm by T x B = 640, and RMSProp's epsilon by its square, gives the same
    updates.
    """

    discount: float = 0.99
    """gamma."""
    lambda_: Annotated[float, tyro.conf.arg(name="lambda")] = 1.0
    """Trace decay (remark 2 of the paper)."""
    clip_rho: float = 1.0
    """Truncation of the importance weights of the temporal differences."""
    clip_c: float = 1.0
    """Truncation of the trace-cutting weights."""
    clip_pg_rho: float = 1.0
    """Truncation of the importance weights of the policy gradient."""
    baseline_cost: float = 0.5
    entropy_cost: float = 0.01
    reward_clip: float | None = None
    """Rewards are clipped to +- this for learning; metrics keep the true ones."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this for learning, before clipping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Prioritised replay of sequences, one for each host."""

    capacity: int = 100_000
    """Sequences kept on each host."""
    min_size: int = 5_000
    """Sequences on each host before learning starts."""
    placement: Literal["host", "device"] = "host"
    """host: NumPy arrays, batches are sent to the learner devices; device: on those devices."""
    ratio: float = 1.0
    """Sequences trained on for each sequence inserted; kept by counting, never by time."""
    priority_exponent: float = 0.9
    """Of the priorities (Kapturowski et al. 2019, section 2.3)."""
    importance_exponent: float = 0.6
    """Of the importance weights, normalised by the largest of the whole batch on all hosts."""
    priority_eta: float = 0.9
    """Weight of the largest TD error of a sequence, against the mean (same section)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayCheckpointConfig(CheckpointConfig):
    """When checkpoints are written, how many are kept, and whether the replay is among them."""

    replay: bool = False
    """Write the newest replay too, while training goes on; --resume then reads it. Without, a
    resumed run starts with an empty one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class R2D2Config(Config):
    """R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019).

    Losses are means over T x B. Where they are summed over time, as in acme and SEED RL, Adam's
    epsilon and the clipping norm are larger by the number of steps learnt from: here the paper's
    1e-3 and 40 are divided by sequence_length - burn_in = 40. The 80 steps of a sequence include
    the burn-in; acme and SEED RL put theirs before them, as sequence_length 120 does.

    Values are the paper's (section 2.3 and table 2), unless a preset says otherwise. A sequence
    is made of whole consecutive unrolls, so sequences overlap by sequence_length - unroll_length.
    """

    unroll_length: int = 40
    """T: steps of one unroll, and steps between the starts of two sequences."""
    sequence_length: int = 80
    """Steps of a replayed sequence: a multiple of unroll_length."""
    burn_in: int = 40
    """First steps of a sequence that only warm the recurrent state up."""
    sequences_per_update: int = 64
    """Sequences in one update, on each host."""
    discount: float = 0.997
    """gamma."""
    n_step: int = 5
    """Steps of the return before it bootstraps."""
    target_update: int = 2500
    """Updates between copies to the target network."""
    reward_clip: float | None = None
    """Rewards are clipped to +- this for learning; the paper rescales values instead."""
    epsilon_base: float = 0.4
    """eps_i = base^(1 + alpha i / (N - 1)) over all N environments of all hosts (Horgan et al.
    2018, "Ape-X", section 4.1)."""
    epsilon_alpha: float = 7.0
    """alpha of that ladder."""
    evaluation_epsilon: float = 0.001
    """Share of random actions in evaluation."""
    replay: ReplayConfig = ReplayConfig()
    checkpoint: ReplayCheckpointConfig = ReplayCheckpointConfig()
    network: NetworkConfig = NetworkConfig(core="lstm", core_size=512)
    optimiser: OptimiserConfig = OptimiserConfig(
        name="adam",
        learning_rate=1e-4,
        epsilon=1e-3 / 40,
        decay_to_zero=False,
        max_gradient_norm=40 / 40,
    )


AnyConfig = TypeVar("AnyConfig", bound=Config)


def to_json(config: Config) -> str:
    """Everything, resolved, with the name of the config's class."""
    fields = {"algorithm": type(config).__name__, **dataclasses.asdict(config)}
    return json.dumps(fields, indent=2, default=str) + "\n"


def from_json(text: str, kinds: Mapping[str, type[AnyConfig]]) -> AnyConfig:
    """The config that ``to_json`` wrote; ``kinds`` maps class names to classes.

    Raises:
      ConfigError: an unknown algorithm or field, as another version may have written.
    """
    try:
        fields = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the saved config is damaged ({error}): restore it, or train again."
        ) from error
    name = fields.pop("algorithm", None)
    if name not in kinds:
        raise ConfigError(
            f"algorithm {name!r} is unknown: it must be one of {sorted(kinds)}. Use the version "
            "of the library that wrote it, or give evaluate_run your own class as config_class."
        )
    config: AnyConfig = _build(kinds[name], fields)
    return config


def _build(kind: type[Any], values: dict[str, Any]) -> Any:
    defaults = kind()
    unknown = set(values) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise ConfigError(
            f"the saved config has the fields {sorted(unknown)}, which {kind.__name__} lacks: "
            "use the version of the library that wrote it."
        )
    built = {}
    for name, value in values.items():
        default = getattr(defaults, name)
        if dataclasses.is_dataclass(default):
            value = _build(type(default), value)
        elif isinstance(value, list):
            value = tuple(value)
        elif name == "out" and value is not None:
            value = Path(value)
        built[name] = value
    return kind(**built)
