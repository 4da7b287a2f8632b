"""``sebulba env-host``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro

from sebulba.cli import options, output
from sebulba.config import Option
from sebulba.remote.compression import Name
from sebulba.remote.security import SecurityOptions
from sebulba.runtime import interrupt
from sebulba.validation import ConfigError, Count, NotNegative, NotNegativeInt, check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    connect: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")]
    """Where a trainer listens: see --listen of train."""
    env: str
    """As --env of the trainer, with the same --env-options and --atari-protocol."""
    env_options: dict[str, Option] = dataclasses.field(default_factory=dict)
    """Options of the environment: KEY VALUE [KEY VALUE ...]."""
    atari_protocol: Literal["machado", "impala"] = "machado"
    """As of train."""
    envs: Count = 32
    """Environments of each lane, which is one actor of the trainer: its --envs-per-actor."""
    lanes: Count = 1
    """Lanes to serve. With two for each inference device, one steps while the other is acted on."""
    env_threads: NotNegativeInt = 0
    """EnvPool threads of each lane. 0: the CPU cores are divided among the lanes."""
    patience_seconds: NotNegative = 600.0
    """End where there is no trainer for so long; 0: never."""
    compress: Name = "none"
    """Compress what the trainer gets, for a network that is slower than 1 Gbit/s. lz4 needs its
    package on both sides; it makes Atari's frames less than a 40th as long."""
    measure: bool = False
    """Say what the network and the trainer can carry, with messages of the real size and no
    environments, and end."""
    security: Annotated[SecurityOptions, options.UNPREFIXED] = SecurityOptions()


def run(words: Sequence[str]) -> None:
    """Step environments here for a trainer elsewhere, which needs no JAX on this machine."""
    default = Options(connect=tyro.MISSING, env=tyro.MISSING)
    given = options.parse(default, words, "sebulba env-host", run.__doc__)
    check_fields(given)
    with interrupt.ending_at_once():
        _serve(given)


def _serve(given: Options) -> None:
    if given.measure and given.compress != "none":
        raise ConfigError(
            f"compress is {given.compress}, and --measure sends zeros in place of frames, which "
            "would tell nothing: set only one of them. With --compress alone, the metrics of the "
            "trainer have the bytes per second."
        )
    security = given.security.of_env_host(given.connect)
    try:
        # Not at the top, since it needs gRPC, which is an extra.
        from sebulba.remote.env_host import EnvHost
    except ImportError as error:
        raise ConfigError(
            f"env-host needs gRPC ({error}): install the extra remote, "
            "pip install -e '.[remote]' in a clone."
        ) from error
    from sebulba import envs
    from sebulba.envs.base import cpu_cores
    from sebulba.remote.handshake import facts

    threads = given.env_threads or max(1, cpu_cores() // given.lanes)
    make_env = envs.maker(given.env, given.env_options, given.atari_protocol, threads)
    spec = envs.probe(make_env)._replace(num_envs=given.envs)
    host = EnvHost(
        given.connect,
        security,
        facts(given.env, given.env_options, given.atari_protocol, spec),
        spec,
        make_env,
        given.patience_seconds,
        output.say,
        given.compress,
    )
    if given.measure:
        output.write(host.measure(given.lanes))
    else:
        host.run(given.lanes)
