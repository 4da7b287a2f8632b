"""What compressing the messages of env-hosts saves, and what it costs on each side.

    pip install zstandard && python benchmarks/compression.py

Timesteps of real games, played with random actions, are laid out as they are sent. Each is
compressed and decompressed in one thread; the median of its CPU time is given. Whether that pays
depends on the network: a message of N bytes takes at least 8 N / (bits per second).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro
import zstandard
from remote_parts import write

from sebulba import envs
from sebulba.remote import compression
from sebulba.remote.wire import Codec

ENVS = ("Pong-v5", "Breakout-v5", "gfootball/academy_empty_goal_close-v1", "D1Basic-v1")
LINKS = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}
STEPS_BEFORE, STEPS_BETWEEN = 100, 5


@dataclasses.dataclass
class Options:
    envs: tyro.conf.Positional[tuple[str, ...]] = ENVS
    """Names of environments with one discrete action."""
    num_envs: int = 64
    """Environments in a message."""
    messages: int = 40
    """Of each."""
    out: Path | None = None
    """Where to write, without .json."""


def bodies(name: str, options: Options) -> list[bytes]:
    """The arrays of timesteps, as they are in a message."""
    env = envs.maker(name, {}, num_threads=2)(options.num_envs, 0)
    codec, rng = Codec(env.spec), np.random.default_rng(0)
    header = len(codec.encode_action(0, codec.no_action())) - codec.no_action().nbytes
    found: list[bytes] = []
    env.reset()
    for number in range(STEPS_BEFORE + STEPS_BETWEEN * options.messages):
        action = rng.integers(env.spec.action.num_actions, size=options.num_envs)
        timestep = env.step(action.astype(np.int32))
        if number >= STEPS_BEFORE and number % STEPS_BETWEEN == 0:
            found.append(codec.encode_timestep(0, timestep, 0.0)[header:])
    env.close()
    return found


def methods(nbytes: int) -> dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    """Both directions of each."""
    lz4 = compression.named("lz4")
    assert lz4 is not None
    made: dict[str, Any] = {
        "lz4": (lz4.compress, lambda packed: lz4.decompress(memoryview(packed), nbytes))
    }
    for level in (-1, 1, 3):
        pack = zstandard.ZstdCompressor(level=level)
        made[f"zstd {level}"] = (pack.compress, zstandard.ZstdDecompressor().decompress)
    return made


def milliseconds(call: Callable[[bytes], bytes], messages: Sequence[bytes]) -> float:
    """Median CPU time of a call."""
    taken = []
    for message in messages:
        start = time.thread_time()
        call(message)
        taken.append(time.thread_time() - start)
    return statistics.median(taken) * 1e3


def measure(name: str, options: Options) -> list[dict[str, Any]]:
    messages = bodies(name, options)
    nbytes = len(messages[0])
    rows: list[dict[str, Any]] = []
    for method, (compress, decompress) in {
        "none": (lambda message: message, lambda message: message),
        **methods(nbytes),
    }.items():
        packed = [compress(message) for message in messages]
        assert [decompress(each) for each in packed] == messages
        mean = statistics.mean(map(len, packed))
        rows.append(
            {
                "env": name,
                "method": method,
                "bytes": nbytes,
                "ratio": nbytes / mean,
                "env_host_ms": milliseconds(compress, messages),
                "trainer_ms": milliseconds(decompress, packed),
                **{f"{link}, ms": 8e3 * mean / bits for link, bits in LINKS.items()},
            }
        )
        print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, args=arguments, description=__doc__)
    rows = [row for name in options.envs for row in measure(name, options)]
    write("compression.py", arguments, options.out, {"num_envs": options.num_envs, "rows": rows})


if __name__ == "__main__":
    main()
