"""What a run does with what its learner logs: NaN, nothing, and names that a row has already."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from whole_runs import HookedEnvs, on, rows_of, tiny

import sebulba
from sebulba import CheckpointConfig, ConfigError, algorithms
from sebulba.learners import VTraceLearner
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoints_in
from sebulba.types import Trajectory


def run(config: sebulba.Config, **parts: Any) -> sebulba.TrainResult:
    return sebulba.train(config, make_env=HookedEnvs(), topology=on(1), progress=False, **parts)


class OneBadLoss(VTraceLearner):
    """Its loss is no number for the trajectories that start in the middle of an episode."""

    def loss(self, params: Any, trajectory: Trajectory, progress: Any) -> Any:
        total, logs = super().loss(params, trajectory, progress)
        halfway = trajectory.timestep.observation[0, :, 5].sum() > 0
        return total * jnp.where(halfway, jnp.nan, 1.0), logs


def test_an_optimizer_may_leave_out_what_is_not_finite() -> None:
    patient = optax.apply_if_finite(optax.sgd(1e-3), 3)
    bad = dataclasses.replace(algorithms.VTRACE, make_learner=OneBadLoss)
    result = run(tiny(total_steps=800), optimizer=patient, algorithm=bad)
    losses = [row["loss"] for row in result.metrics]
    # As in the file and for sinks, NaN is None.
    assert None in losses and all(loss is None or np.isfinite(loss) for loss in losses)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_a_learner_that_logs_neither_loss_nor_gradient_is_watched_too(tmp_path: Path) -> None:
    class Silent(VTraceLearner):
        def update(self, state: Any, progress: float) -> Any:
            state, _ = super().update(state, progress)
            return jax.tree.map(lambda leaf: leaf * jnp.nan, state), {}

    config = tiny(total_steps=2000, out=tmp_path, checkpoint=CheckpointConfig(interval=3))
    with pytest.raises(FloatingPointError, match="not finite"):
        run(config, algorithm=dataclasses.replace(algorithms.VTRACE, make_learner=Silent))
    assert (
        not checkpoints_in(tmp_path).exists() or not Checkpointer(checkpoints_in(tmp_path)).turns()
    )


@pytest.mark.parametrize("where", ["update", "metrics"])
def test_a_learner_that_logs_what_is_in_the_row_already(where: str, tmp_path: Path) -> None:
    """Its number would take the place of the row's own, which resuming and TensorBoard go by."""

    class Clashing(VTraceLearner):
        def update(self, state: Any, progress: float) -> Any:
            state, logs = super().update(state, progress)
            return state, logs | ({"steps": logs["loss"]} if where == "update" else {})

        def metrics(self) -> dict[str, float]:
            return {"steps": 0.0} if where == "metrics" else {}

    config = tiny(out=tmp_path, checkpoint=CheckpointConfig(interval=1))
    with pytest.raises(ConfigError, match="log 'steps', "):
        run(config, algorithm=dataclasses.replace(algorithms.VTRACE, make_learner=Clashing))
    assert rows_of(tmp_path) == []


def rewriting(where: str, change: Any) -> Any:
    """An algorithm whose learner returns from the method ``where`` what ``change`` makes of it."""

    class Own(VTraceLearner):
        pass

    method = getattr(VTraceLearner, where)
    setattr(Own, where, lambda self, *args: change(method(self, *args)))
    return dataclasses.replace(algorithms.VTRACE, make_learner=Own)


@pytest.mark.parametrize(
    ("where", "change", "says"),
    [
        ("update", lambda made: (made[0], None), r"Own\.update returns .* the state and a dict"),
        ("update", lambda made: (made[0], {"a": None}), "Own.update: 'a' in the logs is None"),
        ("update", lambda made: (made[0], {"a": np.ones(3)}), r"'a' in the logs is float\d+\[3\]"),
        ("update", lambda made: (made[0], {1: 0.0}), "has a log 1: a name must be a string"),
        ("loss", lambda made: (made[0], {1: 0.0}), "has a log 1: a name must be a string"),
        ("update", lambda made: (made[0], {"evaluation_x": 0.0}), "not begin with evaluation_"),
        ("metrics", lambda made: {"evaluation_x": 0.0}, "not begin with evaluation_"),
        ("metrics", lambda made: {"m": "x"}, "Own.metrics: 'm' in the logs is a str"),
    ],
)
def test_logs_that_are_no_numbers_by_name_are_refused(where: str, change: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(tiny(), algorithm=rewriting(where, change))


@pytest.mark.parametrize(
    ("histogram", "found"),
    [
        (sebulba.Histogram(np.arange(4.0), np.ones(4)), r"\(float\d+\[4\], float\d+\[4\]\)"),
        (np.ones(4), r"float\d+\[4\]"),
        (None, "None"),
    ],
)
def test_a_histogram_has_one_edge_more_than_counts(
    histogram: Any, found: str, tmp_path: Path
) -> None:
    own = rewriting("histograms", lambda made: {"mine": histogram})
    with pytest.raises(ConfigError, match=rf"Own\.histograms: 'mine' is .*{found}.*N\+1.*N"):
        run(tiny(out=tmp_path), algorithm=own)


def test_a_diverged_run_ends_and_keeps_its_good_checkpoints(tmp_path: Path) -> None:
    def update(grads: Any, count: Any, params: Any = None) -> Any:
        step = jnp.where(count < 7, -1e-3, jnp.nan)
        return jax.tree.map(lambda leaf: step * leaf, grads), count + 1

    breaks = optax.GradientTransformation(lambda _: jnp.zeros((), jnp.int32), update)
    config = tiny(
        total_steps=2000, out=tmp_path, log_every=10**6, checkpoint=CheckpointConfig(interval=3)
    )
    with pytest.raises(FloatingPointError, match=r"not finite by update 9: .*learning_rate"):
        run(config, optimizer=breaks)
    saved = Checkpointer(checkpoints_in(tmp_path))
    assert saved.turns() == [3, 6]
    assert rows_of(tmp_path)[-1]["loss"] is None
