"""Faults of an evaluation while training goes on: it raises or hangs, or its run is ended."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from pathlib import Path

from fault import RUN, checkpoints, fault, resumes, sebulba, small
from faults import FROM_CHECKPOINT, STOPS, breaking, interrupted, trained

EVALUATED = """
from whole_runs import EPISODES
made, steps = tiny, 0

def tiny(**changes):
    evaluation = sebulba.EvaluationConfig(interval=200, episodes=EPISODES)
    return made(**changes, evaluation=evaluation, stall_seconds=10.0, grace_seconds=4.0)

class Faulty(sebulba.envs.Catch):
    def step(self, action):
        global steps
        if self.spec.num_envs == EPISODES:
            steps += 1
            if steps == {step}: {what}
        return super().step(action)

def make_env(num_envs, seed):
    return Faulty(num_envs, seed)
"""
HANGS = "print('hangs', flush=True); time.sleep(600)"
PARTS = "make_env=make_env"


def _setup(chance: random.Random, what: str) -> str:
    """In one of the first evaluations of about ten steps, when there are checkpoints."""
    return EVALUATED.format(step=chance.randrange(20, 80), what=what)


@fault(
    "an evaluation during training raises",
    "an exception in a step of its environments",
    STOPS,
    FROM_CHECKPOINT,
)
def evaluation_thread_raises(chance: random.Random) -> float:
    return breaking(_setup(chance, "breaks()"), PARTS, "in thread evaluation")


@fault(
    "an evaluation during training hangs",
    "a step of its environments sleeps for ever, with `--stall-seconds 10`",
    "all stacks are printed, the evaluation is named, exit code 75",
    FROM_CHECKPOINT,
)
def evaluation_thread_hangs(chance: random.Random) -> float:
    with trained(_setup(chance, HANGS), PARTS) as run:
        run.says("hangs")
        seconds = run.end(30, code=(1, 75))  # By the exception, or by the watchdog.
        assert re.search("the evaluation has been (starting|playing) its", run.text()), run.text()
        return seconds


@fault(
    "preemption while an evaluation hangs",
    "SIGTERM, and a step of its environments sleeps for ever",
    "a checkpoint, then exit code 130 within the grace period",
    "that evaluation",
)
def preemption_while_evaluation_hangs(chance: random.Random) -> float:
    with trained(_setup(chance, HANGS), PARTS) as run:
        run.says("hangs")
        run.wait_for(checkpoints)
        return interrupted(run, signal.SIGTERM, 1)


@fault(
    "kill -9 while evaluations are under way",
    "at a random moment of a run that evaluates all the time",
    "`--resume` goes on, evaluates the checkpoint first, and keeps the best parameters",
    FROM_CHECKPOINT,
)
def kill_while_evaluating(chance: random.Random) -> None:
    with sebulba(*small("--evaluation.interval", "2000", "--evaluation.episodes", "50")) as run:
        run.wait_for(lambda: checkpoints() and list(Path(RUN, "best").glob("[0-9]*")))
        time.sleep(chance.uniform(0, 2))
        run.kill()
    resumes()
    rows = [json.loads(row) for row in Path(RUN, "metrics.jsonl").read_text().splitlines()]
    found = [row for row in rows if "evaluation_steps" in row]
    of_steps = [row["evaluation_steps"] for row in found]
    assert of_steps == sorted(set(of_steps)), f"an evaluation is missing or double: {of_steps}"
    with sebulba("eval", RUN, "--checkpoint", "best", "--episodes", "5", name="best") as best:
        best.end(120)
