"""All there is to measure on a machine with an accelerator, in one command that needs nobody.

    python benchmarks/accelerator.py --out benchmarks/results/gpu
    python benchmarks/accelerator.py --out benchmarks/results/gpu --stages atari pong --limit 1800

First preflight.py sees whether all is there; matplotlib is needed for plots only. Each stage is
some commands, one after the other; what they print goes to OUT/STAGE.log:

  atari, shallow, r2d2,  for vtrace-atari, vtrace-atari-shallow, r2d2-atari-small, ppo-atari and
  ppo, pqn               pqn-atari: `sebulba tune`, then throughput.py with the best setting that it
                         found
  microbatches           sweep.py over --num-microbatches: does a long update in parts let
                         acting slip in between?
  pong, breakout         vtrace-atari-shallow, with the setting found if there is one, for so many
                         minutes in OUT/STAGE/run; its learning curve, with evaluations, in
                         OUT/STAGE
  ppo-pong, pqn-pong,    the same with ppo-atari and pqn-atari, with many environments; a total of
  ppo-breakout,          steps that the minutes allow, as in --train=--total-steps=2000000, makes
  pqn-breakout           their learning rates end at 0

A command that fails or takes too long ends neither its stage nor the others: what comes after makes
do with what there is. The last lines say which stage failed, and the exit status is 1.

All commands share one compilation cache: that of JAX_COMPILATION_CACHE_DIR, where it is set, which
several calls can share too; else one that is removed at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

ROOT = Path(__file__).resolve().parent.parent
PRESETS = {
    "atari": "vtrace-atari",
    "shallow": "vtrace-atari-shallow",
    "r2d2": "r2d2-atari-small",
    "ppo": "ppo-atari",
    "pqn": "pqn-atari",
}
GAMES = {
    # Pixels as in the presets for Pong on a CPU, whose updates are too small for an accelerator.
    "pong": ("--env", "Pong-v5", "--network.pixels", "normalized"),
    "breakout": ("--env", "Breakout-v5"),
}


def many(envs: int, minibatches: int) -> tuple[str, ...]:
    """Options of two actors with many environments: all cores have work at every step.

    With the actions that the game uses, none of which sticks: as in most reports of how soon these
    games are learned.
    """
    return (
        *("--atari-protocol", "impala", "--actors-per-device", "2", "--envs-per-actor", f"{envs}"),
        *("--batch-size", f"{2 * envs}", "--num-minibatches", f"{minibatches}"),
    )


FAST = ("--optimizer.learning-rate", "5e-4")
OPTIONS: dict[str, tuple[str, ...]] = {
    "ppo-pong": (
        *(*many(64, 32), *FAST, "--unroll-length", "32", "--num-epochs", "3", "--lambda", "0.98"),
        *("--entropy-cost", "0.02", "--entropy-decay-to-zero"),
    ),
    # What results/gpu has was trained with the preset's lambda, 0.65, and was at 15. These options
    # came further in fewer steps, on a CPU: results/pqn_pong_unfinished.
    "pqn-pong": (*many(64, 32), *FAST, "--optimizer.decay-to-zero", "--lambda", "0.9"),
    # Six times the batch of ppo-atari, so a sixth of the turns: with its clip ratio of 0.1, the
    # ratio of up to 36% of the steps was outside.
    "ppo-breakout": (
        *(*many(96, 24), "--unroll-length", "32", "--clip-ratio", "0.2", "--clip-value", "None"),
        "--entropy-decay-to-zero",
    ),
    "pqn-breakout": (*many(64, 32), "--optimizer.decay-to-zero"),
}
"""Of a stage's training, after what was tuned. results/gpu has what they learned."""
TRAININGS = {"pong": ("shallow", "pong"), "breakout": ("shallow", "breakout")} | {
    f"{tuned}-{game}": (tuned, game) for tuned in ("ppo", "pqn") for game in GAMES
}
"""The stage that tunes the preset, and the game, of each stage that trains."""
PREFLIGHT = 300.0
"""Seconds that the preflight may take."""
GRACE = 60.0
"""Seconds in which an interrupted command writes what it has, such as a last checkpoint."""
INTERRUPTED = 130
"""What sebulba exits with where it was interrupted. (This process imports nothing of it: the
devices and their memory are for the commands.)"""
Stage = Literal[
    *("atari", "shallow", "r2d2", "microbatches", "pong", "breakout"),
    *("ppo", "pqn", "ppo-pong", "pqn-pong", "ppo-breakout", "pqn-breakout"),
]


@dataclasses.dataclass(frozen=True)
class Options:
    """All there is to measure on a machine with an accelerator."""

    out: Path
    """The folder for the results."""
    stages: tuple[Stage, ...] = get_args(Stage)
    """In their order."""
    repeats: int = 3
    """Of throughput.py and sweep.py."""
    seconds: float = 3.0
    """Of each measurement."""
    minutes: float = 8.0
    """Of training, for each game."""
    train: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Options of the games' training, as in --train=--batch-size=64; once for each."""
    limit: float = 7200.0
    """Seconds, after which no stage starts and the command under way is interrupted; it has up to
    a minute more to end."""
    command_limit: float = 1200.0
    """Seconds, after which any command but training is interrupted."""
    allow_cpu: bool = False
    """Do with a CPU, to try this command out."""


def main(options: Options) -> int:
    """Run the stages; 1 where one of them failed."""
    with tempfile.TemporaryDirectory() as scratch:
        session = Session(options, Path(scratch))
        allow_cpu = ["--allow-cpu"] if options.allow_cpu else []
        ready = session.run("preflight", ["benchmarks/preflight.py", *allow_cpu], PREFLIGHT)
        print(session.log("preflight").read_text(), end="", flush=True)
        failed = [stage for stage in options.stages if not passes(stage, session)] if ready else []
    return int(not ready or bool(failed))


def passes(stage: Stage, session: Session) -> bool:
    """Run one stage, where there is time left, and say how it went."""
    start = time.monotonic()
    result = "no time"
    if session.seconds_left() > 0:
        try:
            result = "passed" if STAGES[stage](stage, session) else "FAILED"
        except Exception as error:  # The other stages can still work.
            result = f"FAILED with {error!r}"
    print(f"{result:7}  {stage:8}  {time.monotonic() - start:6.0f} s  {stage}.log", flush=True)
    return result == "passed"


class Session:
    """Runs Python in the folder of the results, one command after the other, against the clock."""

    def __init__(self, options: Options, scratch: Path) -> None:
        self.options = options
        self.out = options.out.absolute()
        self._end = time.monotonic() + options.limit
        self._cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", scratch)).absolute()
        self._started: set[str] = set()
        self.out.mkdir(parents=True, exist_ok=True)

    def seconds_left(self) -> float:
        """Until the limit."""
        return self._end - time.monotonic()

    def log(self, stage: str) -> Path:
        """What the commands of a stage printed."""
        return self.out / f"{stage}.log"

    def run(self, stage: str, arguments: Sequence[str], seconds: float | None = None) -> bool:
        """Did Python end well with these arguments, or have its seconds passed?

        A script is named relative to the repository, and files relative to the results.
        """
        options = self.options
        limit = min(options.command_limit if seconds is None else seconds, self.seconds_left())
        script = arguments[0]
        words = [f"{ROOT / script}" if script.endswith(".py") else script, *arguments[1:]]
        mode = "a" if stage in self._started else "w"
        self._started.add(stage)
        with self.log(stage).open(mode) as log:
            print("$", shlex.join(["python", *arguments]), file=log, flush=True)
            if limit <= 0:
                print("# not started: the limit is reached", file=log)
                return False
            process = subprocess.Popen(
                [sys.executable, *words],
                stdout=log,
                stderr=log,
                cwd=self.out,
                env=self._variables(),
            )
            code = wait(process, limit)
            print(f"# ended with {code}, of at most {limit:.0f} s", file=log)
        self._hide_places(self.log(stage))
        return code in (0, INTERRUPTED)

    def _variables(self) -> dict[str, str]:
        path = [f"{ROOT}", *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",  # What is killed leaves what it printed.
            "JAX_COMPILATION_CACHE_DIR": f"{self._cache}",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def _hide_places(self, log: Path) -> None:
        """Results say nothing of where this machine keeps things; tracebacks do."""
        text = log.read_text(errors="replace")
        places = {f"{self.out}/": "", f"{ROOT}/": "", f"{self._cache}/": "CACHE/"}
        places |= {f"{prefix}/": "PYTHON/" for prefix in (sys.prefix, sys.base_prefix)}
        for place, name in places.items():
            text = text.replace(place, name)
        log.write_text(text)


def wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit status, where the process is interrupted after so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    finally:
        process.kill()
        code = process.wait()
    return code


def measure(stage: str, session: Session) -> bool:
    """Tune a preset, and measure it with the best setting there is."""
    options, preset = session.options, PRESETS[stage]
    tune = [
        *("-m", "sebulba", "tune", preset, "--seconds", f"{options.seconds}"),
        *("--write", tuned_file(stage)),
    ]
    throughput = [
        *("benchmarks/throughput.py", preset),
        *("--repeats", f"{options.repeats}", "--seconds", f"{options.seconds}"),
        *("--out", f"throughput_{preset}".replace("-", "_")),
    ]
    # What tune has found by then is written; time is left to measure it.
    tuned = session.run(stage, tune, min(options.command_limit, session.seconds_left() / 2))
    measured = session.run(stage, [*throughput, "--", *words_in(tuned_file(stage), session)])
    return tuned and measured


def microbatches(stage: str, session: Session) -> bool:
    """Training with updates of 1, 4 and 8 microbatches."""
    options, preset = session.options, PRESETS["atari"]
    sweep = [
        *("benchmarks/sweep.py", preset, "num-microbatches", "1", "4", "8"),
        *("--repeats", f"{options.repeats}", "--seconds", f"{options.seconds}"),
        *("--out", f"sweep_{preset}_microbatches".replace("-", "_")),
    ]
    return session.run(stage, [*sweep, "--", *words_in(tuned_file("atari"), session)])


def train(stage: str, session: Session) -> bool:
    """Train for the minutes there are; however that ends, draw the learning curve."""
    options = session.options
    directory, resume = run_directory(stage, session)
    preset, game = TRAININGS[stage]
    command = [
        *("-m", "sebulba", "train", PRESETS[preset], *GAMES[game]),
        *without_actors(words_in(tuned_file(preset), session)),
        *OPTIONS.get(stage, ()),
        *("--checkpoint.interval", "2000", "--checkpoint.max-to-keep", "1000", "--out", directory),
        *resume,
        *options.train,
    ]
    # Of the time there is, some is for the curve.
    trained = session.run(stage, command, min(60 * options.minutes, 0.7 * session.seconds_left()))
    evaluating = max(0.0, min(options.command_limit, session.seconds_left()) / 2)
    curve = [
        *("benchmarks/learning_curve.py", directory, "--out", stage),
        *("--seconds", f"{evaluating:.0f}"),
    ]
    drawn = session.run(stage, curve)
    if drawn:  # All were evaluated. What stays is small: config.json and metrics.jsonl.
        shutil.rmtree(session.out / directory / "checkpoints", ignore_errors=True)
    return trained and drawn


def run_directory(stage: str, session: Session) -> tuple[str, list[str]]:
    """Where in the results to train: on from the checkpoints of an earlier call, or anew."""
    for number in itertools.count(1):
        directory = f"{stage}/run" + (f"-{number}" if number > 1 else "")
        if any((session.out / directory / "checkpoints").glob("[0-9]*")):
            return directory, ["--resume"]
        if not (session.out / directory).exists():
            break
    return directory, []


def tuned_file(stage: str) -> str:
    """Where the best setting of a stage's preset is written."""
    return f"{PRESETS[stage]}.tuned"


def words_in(tuned: str, session: Session) -> list[str]:
    """Options that were found to be the fastest; none where nobody looked."""
    file = session.out / tuned
    return file.read_text().split() if file.exists() else []


ACTORS = 2
"""actors_per_device of the presets that the games are trained with."""


def without_actors(words: Sequence[str]) -> list[str]:
    """Tuned options for learning, not for speed alone: with as many actors as the preset has.

    Every actor has unrolls that wait while the others' are learned from: with eight times as many,
    the data are eight times as old, which V-trace corrects for, but learns less from. The threads
    of an actor's environments go too where they were found for another number of actors: one for
    each of 16 actors would leave most cores idle with 2.
    """
    options = dict(zip(words[::2], words[1::2], strict=True))
    if int(options.pop("--actors-per-device", ACTORS)) != ACTORS:
        options.pop("--env-threads", None)
    return [word for option in options.items() for word in option]


STAGES: dict[str, Callable[[str, Session], bool]] = {
    **dict.fromkeys(PRESETS, measure),
    "microbatches": microbatches,
    **dict.fromkeys(TRAININGS, train),
}

if __name__ == "__main__":
    # Where a shell started this in the background, commands would not hear of interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ends by an exception, so that the command under way is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(tyro.cli(Options)))
