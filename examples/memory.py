"""A task that needs memory, with and without an LSTM.

A cue is seen only in the first observation and asked for at the end; without a recurrent core
the best possible mean return is 0.

python examples/memory.py --core lstm
python examples/memory.py --core none
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import tyro

import sebulba


def main(
    core: Literal["lstm", "none"] = "lstm",
    delay: int = 10,
    total_steps: int = 500_000,
    seed: int = 0,
) -> float | None:
    """Train on sebulba/Memory and return the mean return of the last 100 episodes."""
    base = sebulba.presets.get("vtrace-memory")
    config = dataclasses.replace(
        base,
        env_options={"delay": delay},
        total_steps=total_steps,
        seed=seed,
        network=dataclasses.replace(base.network, core=core),
    )
    result = sebulba.train(config)
    return result.metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
