"""CartPole from Python: take a preset, change a field, train, evaluate.

python examples/cartpole.py --help
"""

from __future__ import annotations

import dataclasses

import tyro

import sebulba


def main(total_steps: int = 500_000, seed: int = 0) -> float:
    """Train on CartPole-v1 and return the mean return of 20 episodes, sampled as in training."""
    config = dataclasses.replace(
        sebulba.presets.get("vtrace-cartpole"), total_steps=total_steps, seed=seed
    )
    result = sebulba.train(config)
    evaluation = sebulba.evaluate(result.agent, result.params, result.make_env, episodes=20)
    print(evaluation.summary())
    return evaluation.summary()["mean"]


if __name__ == "__main__":
    tyro.cli(main)
