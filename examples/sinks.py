"""Metrics to Weights & Biases, MLflow or Aim: each is a sink, a class of two methods.

python examples/sinks.py --to mlflow    # after: pip install mlflow
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import tyro

import sebulba


class Wandb:
    """Weights & Biases: pip install wandb."""

    def __init__(self, config: sebulba.Config) -> None:
        import wandb

        self._run = wandb.init(project="sebulba", config=dataclasses.asdict(config))

    def write(self, row: dict[str, Any]) -> None:
        self._run.log(row, step=row["steps"])

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow: pip install mlflow."""

    def __init__(self, config: sebulba.Config) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.start_run(run_name=config.preset)
        mlflow.log_params(dataclasses.asdict(config))

    def write(self, row: dict[str, Any]) -> None:
        numbers = {name: value for name, value in row.items() if value is not None}
        self._mlflow.log_metrics(numbers, step=row["steps"])

    def close(self) -> None:
        self._mlflow.end_run()


class Aim:
    """Aim: pip install aim."""

    def __init__(self, config: sebulba.Config) -> None:
        import aim

        self._run = aim.Run(experiment=config.preset)
        self._run["config"] = dataclasses.asdict(config)

    def write(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if value is not None:
                self._run.track(value, name=name, step=row["steps"])

    def close(self) -> None:
        self._run.close()


SINKS = {"wandb": Wandb, "mlflow": MLflow, "aim": Aim}


def main(
    to: Literal["csv", "wandb", "mlflow", "aim"] = "csv", total_steps: int = 100_000
) -> float | None:
    """Train Catch, and return the mean return of the last 100 episodes; 1 is perfect."""
    config = dataclasses.replace(sebulba.presets.get("vtrace-catch"), total_steps=total_steps)
    sink = sebulba.CsvSink("metrics.csv") if to == "csv" else SINKS[to](config)
    result = sebulba.train(config, sinks=[sink])
    return result.metrics[-1]["episode_return_mean_100"]


if __name__ == "__main__":
    tyro.cli(main)
