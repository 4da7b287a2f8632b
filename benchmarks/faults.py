"""Faults of one process: its parts raise or hang, or its user interrupts it."""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path

from fault import RUN, Running, checkpoints, fault, program, resumes, sebulba, small, steps

STOPS = "the run ends with the exception, which names its thread"
FROM_CHECKPOINT = "the steps since the last checkpoint"
NOTHING = "nothing"

PARTS = """
import signal, time
import numpy as np
import sebulba
from whole_runs import HookedEnvs, hooked_learner, on, tiny

class Broken(Exception):
    pass

def breaks(message="broken on purpose"):
    print("breaks", flush=True)
    raise Broken(message)
"""
TRAIN = """
config = tiny(total_steps=10**9, out="run", checkpoint=sebulba.CheckpointConfig(interval=5))
sebulba.train(config, topology=on(1), progress=False, {parts})
"""


def trained(setup: str, parts: str, **environment: str) -> Running:
    """A tiny training for ever, with ``parts`` of its own that ``setup`` defines."""
    return program(PARTS + setup + TRAIN.format(parts=parts), **environment)


def breaking(setup: str, parts: str, *says: str) -> float:
    """Seconds between "breaks" and the end of a run, whose traceback has all of ``says``."""
    with trained(setup, parts) as run:
        run.says("breaks")
        seconds = run.end(30, code=1)
        for text in ("Broken: broken on purpose", *says):
            assert text in run.text(), f"{text!r} is not in:\n{run.text()}"
        return seconds


@fault(
    "an environment raises", "an exception in step 40 to 90 of one actor", STOPS, FROM_CHECKPOINT
)
def environment_raises(chance: random.Random) -> float:
    step = chance.randrange(40, 90)
    hook = f"def hook(env):\n    if env.actor == 1 and env.steps == {step}: breaks()\n"
    return breaking(hook, "make_env=HookedEnvs(on_step=hook)", "in thread actor-")


@fault("an environment raises in its reset", "an exception in the first reset", STOPS, NOTHING)
def reset_raises(chance: random.Random) -> float:
    hook = "def hook(env):\n    if env.actor == 0: breaks()\n"
    return breaking(hook, "make_env=HookedEnvs(on_reset=hook)", "in thread actor-")


@fault(
    "an actor raises", "an exception where the actor hands its unroll over", STOPS, FROM_CHECKPOINT
)
def actor_raises(chance: random.Random) -> float:
    patch = f"""
from sebulba.inference.actor import Actor
handed = Actor._hand_over
def hand_over(self, *args):
    if self._unroll == {chance.randrange(5, 30)}: breaks()
    handed(self, *args)
Actor._hand_over = hand_over
"""
    return breaking(patch, "", "in thread actor-")


@fault("the learner raises", "an exception before update 10 to 40", STOPS, FROM_CHECKPOINT)
def learner_raises(chance: random.Random) -> float:
    update = chance.randrange(10, 40)
    hook = f"def hook(update):\n    if update == {update}: breaks()\n"
    return breaking(hook, "algorithm=hooked_learner(hook)", "in the learner, update")


@fault(
    "the logger raises", "an exception while a row of metrics is written", STOPS, FROM_CHECKPOINT
)
def logger_raises(chance: random.Random) -> float:
    patch = f"""
from sebulba.metrics.writer import MetricsWriter
rows = []
def write(self, row, histograms):
    rows.append(row)
    if len(rows) == {chance.randrange(2, 12)}: breaks()
MetricsWriter.write = write
"""
    return breaking(patch, "")


@fault("a checkpoint raises", "an exception while a checkpoint is started", STOPS, FROM_CHECKPOINT)
def checkpoint_raises(chance: random.Random) -> float:
    patch = f"""
from sebulba.rundir.checkpoint import Checkpointer
calls, saved = [], Checkpointer.save
def save(self, *args):
    calls.append(args)
    if len(calls) == {chance.randrange(2, 6)}: breaks()
    saved(self, *args)
Checkpointer.save = save
"""
    return breaking(patch, "")


EVALUATED = """
result = sebulba.train(tiny(out="run"), topology=on(1), progress=False)
def hook(env):
    if env.steps == {step}: {what}
made = HookedEnvs(on_step=hook)
sebulba.evaluate(result.agent, result.params, made, {episodes})
"""


@fault(
    "an evaluation raises", "an exception in a step of its environments", "the exception", NOTHING
)
def evaluation_raises(chance: random.Random) -> float:
    code = EVALUATED.format(step=chance.randrange(1, 9), what="breaks()", episodes=20)
    with program(PARTS + code) as run:
        run.says("breaks")
        return run.end(30, code=1)


@fault(
    "the queue is full while the run stops",
    "Ctrl-C while all actors wait for a slow learner",
    "a checkpoint, then exit code 130",
    NOTHING,
)
def full_queue(chance: random.Random) -> float:
    hook = "def hook(update):\n    print('update', update, flush=True); time.sleep(0.3)\n"
    with trained(hook, "algorithm=hooked_learner(hook)") as run:
        run.says(f"update {chance.randrange(6, 14)}")
        return interrupted(run, signal.SIGINT, 1)


def interrupted(run: Running, number: int, code: int | tuple[int, ...] = 130) -> float:
    """Seconds from a signal until the end of a run, which can be resumed."""
    before = steps()
    run.send(number)
    # A program that does not catch it ends by KeyboardInterrupt: by SIGINT, as the shell says.
    seconds = run.end(30, code=(code, 130, -2) if isinstance(code, int) else code)
    assert checkpoints() and steps() >= before
    return seconds


@fault("Ctrl-C", "SIGINT at a random moment", "a checkpoint, then exit code 130", NOTHING)
def ctrl_c(chance: random.Random) -> float:
    return signalled(chance, signal.SIGINT)


@fault("preemption", "SIGTERM at a random moment", "a checkpoint, then exit code 130", NOTHING)
def preemption(chance: random.Random) -> float:
    return signalled(chance, signal.SIGTERM)


def signalled(chance: random.Random, number: int) -> float:
    with sebulba(*small()) as run:
        run.wait_for(checkpoints)
        time.sleep(chance.uniform(0, 1))
        seconds = interrupted(run, number)
    resumes()
    return seconds


@fault(
    "Ctrl-C while the environments are made",
    "SIGINT in the first seconds, before training",
    "exit code 130 within the grace period; no run directory",
    NOTHING,
)
def ctrl_c_early(chance: random.Random) -> float:
    with sebulba(*small("--env", "CartPole-v1"), JAX_COMPILATION_CACHE_DIR="cache") as run:
        run.wait_for(lambda: _imports_jax(run.process.pid))
        time.sleep(chance.uniform(0.2, 1.0))
        run.send(signal.SIGINT)
        return run.end(35, code=(130, -2))


def _imports_jax(pid: int) -> bool:
    return "libjax_common" in Path(f"/proc/{pid}/maps").read_text()


@fault(
    "Ctrl-C during compilation",
    "SIGINT in the first second of a compilation without a cache",
    "exit code 130 within the grace period",
    NOTHING,
)
def ctrl_c_compiling(chance: random.Random) -> float:
    patch = "from jax._src import compiler\n"
    patch += "kept = compiler.backend_compile_and_load\n"
    patch += "def compiled(*a, **k):\n    print('compiles', flush=True); return kept(*a, **k)\n"
    patch += "compiler.backend_compile_and_load = compiled\n"
    with trained(patch, "", JAX_COMPILATION_CACHE_DIR="cache") as run:
        run.wait_for(lambda: run.text().count("compiles") > chance.randrange(3, 30))
        run.send(signal.SIGINT)
        return run.end(35, code=(1, 130, -2))


@fault(
    "Ctrl-C during a checkpoint",
    "SIGINT while a checkpoint is written",
    "the checkpoint is completed, then exit code 130",
    NOTHING,
)
def ctrl_c_saving(chance: random.Random) -> float:
    with sebulba(*small("--checkpoint.interval", "1")) as run:
        run.wait_for(lambda: checkpoints() and list(Path(RUN, "checkpoints").glob("*tmp*")))
        seconds = interrupted(run, signal.SIGINT)
    resumes()
    return seconds


@fault(
    "Ctrl-C during an evaluation",
    "SIGINT in a step of its environments",
    "KeyboardInterrupt",
    NOTHING,
)
def ctrl_c_evaluating(chance: random.Random) -> float:
    plays = "print('plays', flush=True); time.sleep(0.01)"
    code = EVALUATED.format(step=chance.randrange(1, 50), what=plays, episodes=10**6)
    with program(PARTS + code) as run:
        run.says("plays")
        run.send(signal.SIGINT)
        return run.end(20, code=(1, 130, -2))


@fault(
    "Ctrl-C without a run directory",
    "SIGINT with out=None",
    "`Interrupted`, which holds the parameters learned so far",
    NOTHING,
)
def ctrl_c_without_out(chance: random.Random) -> float:
    code = f"""
def hook(env):
    if env.actor == 0 and env.steps == {chance.randrange(40, 200)}:
        signal.raise_signal(signal.SIGINT)
start = time.monotonic()
try:
    made = HookedEnvs(on_step=hook)
    sebulba.train(tiny(total_steps=10**9), make_env=made, topology=on(1), progress=False)
except sebulba.Interrupted as stop:
    assert stop.result.updates > 0 and stop.result.params
    print("kept", flush=True)
"""
    with program(PARTS + code) as run:
        run.says("kept")
        return run.end(20)


@fault(
    "two signals",
    "SIGTERM, and again a second later, while the learner hangs",
    "the process ends at once, exit code 130",
    FROM_CHECKPOINT,
)
def two_signals(chance: random.Random) -> float:
    with trained(_hangs(chance), "algorithm=hooked_learner(hook)") as run:
        run.says("hangs")
        run.send(signal.SIGTERM)
        time.sleep(1)
        run.send(signal.SIGTERM)
        return run.end(5, code=130)


@fault(
    "a signal while the learner hangs",
    "SIGTERM while an update sleeps for ever",
    "the process ends after the grace period, exit code 130",
    FROM_CHECKPOINT,
)
def signal_while_hanging(chance: random.Random) -> float:
    with trained(_hangs(chance), "algorithm=hooked_learner(hook)") as run:
        run.says("hangs")
        run.send(signal.SIGTERM)
        return run.end(20, code=130)


def _hangs(chance: random.Random) -> str:
    update = chance.randrange(20, 50)
    return (
        f"def hook(x):\n    if getattr(x, 'steps', x) == {update} and getattr(x, 'actor', 1):\n"
        "        print('hangs', flush=True); time.sleep(600)\n"
        "made = tiny\n"
        "def tiny(**changes): return made(**changes, stall_seconds=10.0, grace_seconds=4.0)\n"
    )


@fault(
    "an environment hangs",
    "a step sleeps for ever, with `--stall-seconds 10`",
    "all stacks are printed, the actor is named, exit code 75",
    FROM_CHECKPOINT,
)
def environment_hangs(chance: random.Random) -> float:
    with trained(_hangs(chance), "make_env=HookedEnvs(on_step=hook)") as run:
        run.says("hangs")
        # By the exception, or by the watchdog if the actor is waited for longer than that allows.
        seconds = run.end(30, code=(1, 75))
        assert re.search(r"nothing has moved for \d+ s: actor-\d has been stepping", run.text())
        return seconds


@fault(
    "the learner hangs",
    "an update sleeps for ever, with `--stall-seconds 10`",
    "all stacks are printed, the process ends, exit code 75",
    FROM_CHECKPOINT,
)
def learner_hangs(chance: random.Random) -> float:
    with trained(_hangs(chance), "algorithm=hooked_learner(hook)") as run:
        run.says("hangs")
        return run.end(30, code=75)


@fault(
    "a thread is delayed by 30 s",
    "one step of an environment takes 30 s",
    "training goes on",
    NOTHING,
    times=3,
)
def delayed_thread(chance: random.Random) -> None:
    hook = "def hook(env):\n    if env.actor == 1 and env.steps == 50:\n"
    hook += "        print('sleeps', flush=True); time.sleep(30); print('wakes', flush=True)\n"
    with trained(hook, "make_env=HookedEnvs(on_step=hook)") as run:
        run.says("wakes")
        before = steps()
        run.wait_for(lambda: steps() > before + 1000)


@fault(
    "a learner's log is called `steps`",
    "a log with the name of a number of each row",
    "refused with its name",
    NOTHING,
)
def clashing_log(chance: random.Random) -> float:
    name = chance.choice(["steps", "update", "seconds", "episode_return_mean"])
    patch = f"""
from sebulba.learners import VTraceLearner
learned = VTraceLearner.update
def update(self, *args):
    state, logs = learned(self, *args)
    return state, logs | {{{name!r}: logs["loss"]}}
VTraceLearner.update = update
"""
    return refused(patch, "", name)


def refused(setup: str, parts: str, *says: str) -> float:
    """Seconds until a run with a fault ends by an error that has all of ``says``."""
    start = time.monotonic()
    with trained(setup, parts) as run:
        run.end(120, code=1)
        last = run.text().split("Error: ")[-1]
        for text in says:
            assert text in last, f"{text!r} is not in:\n{run.text()}"
    return time.monotonic() - start
