"""All there is to measure on a machine with an accelerator, in one command that needs nobody.

    python benchmarks/accelerator.py --out benchmarks/results/gpu
    python benchmarks/accelerator.py --out benchmarks/results/gpu --stages atari pong --minutes 5

It needs matplotlib. Each stage is some commands, one after the other; what they print goes to
OUT/STAGE.log:

  atari, shallow, r2d2   for vtrace-atari, vtrace-atari-shallow and r2d2-atari-small: `sebulba
                         tune`, then throughput.py with the setting that it found
  pieces                 sweep.py over --gradient-accumulation: does a long update in pieces let
                         acting slip in between?
  pong, breakout         vtrace-atari-shallow, with the setting found if there is one, for so many
                         minutes; its learning curve, with evaluations

A command that fails ends its stage but not the others; the last lines say which did, and the exit
status is 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TextIO

import tyro

from sebulba.cli import INTERRUPTED

HERE = Path(__file__).resolve().parent
PRESETS = {
    "atari": "vtrace-atari",
    "shallow": "vtrace-atari-shallow",
    "r2d2": "r2d2-atari-small",
}
GAMES = {
    # Pixels as in the preset vtrace-pong, whose updates are too small for an accelerator.
    "pong": ["--env", "Pong-v5", "--network.pixels", "standardised"],
    "breakout": ["--env", "Breakout-v5"],
}
GRACE = 120
"""Seconds in which an interrupted training writes its last checkpoint."""
Stage = Literal["atari", "shallow", "r2d2", "pieces", "pong", "breakout"]


@dataclasses.dataclass(frozen=True)
class Options:
    """All there is to measure on a machine with an accelerator."""

    out: Path
    """The folder for the results."""
    stages: tuple[Stage, ...] = ("atari", "shallow", "r2d2", "pieces", "pong", "breakout")
    """In their order."""
    repeats: int = 3
    """Of throughput.py and sweep.py."""
    seconds: float = 3.0
    """Of each measurement."""
    minutes: float = 8.0
    """Of training, for each game."""
    train: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Options of the games' training, as in --train=--batch-size=64; once for each."""


def main(options: Options) -> int:
    """Run the stages; 1 where one of them failed."""
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for stage in options.stages:
        start = time.perf_counter()
        log = options.out / f"{stage}.log"
        with log.open("w") as file:
            passed = STAGES[stage](stage, options, file)
        print(
            f"{'passed' if passed else 'FAILED':6}  {stage:8}  "
            f"{time.perf_counter() - start:6.0f} s  {log}",
            flush=True,
        )
        failed += [] if passed else [stage]
    return bool(failed)


def measure(stage: str, options: Options, log: TextIO) -> bool:
    """Tune a preset, and measure it so."""
    preset, tuned = PRESETS[stage], tuned_file(stage, options)
    tune = ["-m", "sebulba", "tune", preset, "--seconds", f"{options.seconds}"]
    throughput = [
        *(f"{HERE / 'throughput.py'}", preset),
        *("--repeats", f"{options.repeats}", "--seconds", f"{options.seconds}"),
        *("--out", f"{options.out / f'throughput_{preset}'.replace('-', '_')}"),
    ]
    return run([*tune, "--write", f"{tuned}"], log) and run(
        [*throughput, "--", *words_in(tuned)], log
    )


def pieces(stage: str, options: Options, log: TextIO) -> bool:
    """Training with updates of 1, 4 and 8 pieces."""
    preset = PRESETS["atari"]
    sweep = [
        *(f"{HERE / 'sweep.py'}", preset, "gradient-accumulation", "1", "4", "8"),
        *("--repeats", f"{options.repeats}", "--seconds", f"{options.seconds}"),
        *("--out", f"{options.out / f'sweep_{preset}_pieces'.replace('-', '_')}"),
    ]
    return run([*sweep, "--", *words_in(tuned_file("atari", options))], log)


def train(stage: str, options: Options, log: TextIO) -> bool:
    """Train for the minutes there are, then draw the learning curve."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = f"{Path(scratch) / stage}"
        command = [
            *("-m", "sebulba", "train", PRESETS["shallow"], *GAMES[stage]),
            *words_in(tuned_file("shallow", options)),
            *("--checkpoint.every", "2000", "--checkpoint.keep", "1000", "--out", directory),
            *options.train,
        ]
        curve = [f"{HERE / 'learning_curve.py'}", directory, "--out", f"{options.out / stage}"]
        return run(command, log, 60 * options.minutes) and run(curve, log)


def run(arguments: list[str], log: TextIO, seconds: float | None = None) -> bool:
    """Did Python end well with these arguments, or have its seconds passed?"""
    log.write(f"$ {shlex.join(['python', *arguments])}\n")
    log.flush()
    process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(GRACE) == INTERRUPTED
        return False
    finally:
        process.kill()
        process.wait()


def tuned_file(stage: str, options: Options) -> Path:
    """Where the best setting of a stage's preset is written."""
    return options.out / f"{PRESETS[stage]}.tuned"


def words_in(tuned: Path) -> list[str]:
    """Options that were found to be the fastest; none where nobody looked."""
    return tuned.read_text().split() if tuned.exists() else []


STAGES: dict[str, Callable[[str, Options, TextIO], bool]] = {
    **dict.fromkeys(PRESETS, measure),
    "pieces": pieces,
    **dict.fromkeys(GAMES, train),
}

if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
