"""A search for the learning rate and the entropy cost of V-trace on Catch, by Optuna.

Optuna hears of each trial's return while it trains, and stops those outside of the better half.

python examples/optuna_search.py    # after: pip install optuna
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tyro

import sebulba

try:
    import optuna
except ImportError:
    raise SystemExit("This example needs Optuna: pip install optuna") from None


class Pruner:
    """A sink that tells Optuna each row's return, and ends the training if Optuna says so."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        self._rows = 0

    def write(self, row: dict[str, Any]) -> None:
        self._rows += 1
        # Rows are as many turns apart in all trials, so their numbers can be compared.
        self._trial.report(row["episode_return_mean_100"], self._rows)
        if self._trial.should_prune():
            raise optuna.TrialPruned

    def close(self) -> None:
        """Nothing is left to do."""


def objective(trial: optuna.Trial, total_steps: int) -> float:
    """Train once, and return the mean return of the last 100 episodes."""
    base = sebulba.presets.get("vtrace-catch")
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    config = dataclasses.replace(
        base,
        total_steps=total_steps,
        log_every=10,
        entropy_cost=trial.suggest_float("entropy_cost", 1e-4, 1e-1, log=True),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=rate),
    )
    result = sebulba.train(config, sinks=[Pruner(trial)], progress=False)
    return result.metrics[-1]["episode_return_mean_100"]


def main(num_trials: int = 20, total_steps: int = 50_000, seed: int = 0) -> float:
    """Search, print the best trial, and return its mean return; 1 is perfect.

    ``total_steps`` are a quarter of the preset's, so that it matters how fast a trial learns.
    Successive halving compares trials at their second and fourth row.
    """
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
    )
    study.optimize(lambda trial: objective(trial, total_steps), num_trials)
    print(study.best_value, study.best_params)
    return study.best_value


if __name__ == "__main__":
    tyro.cli(main)
