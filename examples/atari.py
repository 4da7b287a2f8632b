"""An Atari game with IMPALA, into a run directory that can be resumed and evaluated.

python examples/atari.py --env Pong-v5 --out runs/pong
python examples/atari.py --env Pong-v5 --out runs/pong --resume
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

import sebulba


def main(
    out: Path,
    env: str = "Pong-v5",
    network: Literal["shallow", "deep"] = "shallow",
    total_steps: int = 10_000_000,
    resume: bool = False,
    episodes: int = 10,
) -> float:
    """Train, and return the mean return over ``episodes`` whole games."""
    preset = "vtrace-atari" if network == "deep" else "vtrace-atari-shallow"
    config = dataclasses.replace(
        sebulba.presets.get(preset), env=env, total_steps=total_steps, out=out, resume=resume
    )
    sebulba.train(config)
    evaluation = sebulba.evaluate_run(out, episodes)
    print(evaluation.summary())
    return evaluation.summary()["mean"]


if __name__ == "__main__":
    tyro.cli(main)
