"""The command line: ``sebulba train | eval | presets | tune | pod | plan``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import rich
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sebulba import presets
from sebulba.cli import plan_table, pod
from sebulba.config import Config
from sebulba.devices import distributed
from sebulba.planning import plan, tune
from sebulba.rundir.directory import has_checkpoints, load_config
from sebulba.runners import training
from sebulba.runners.evaluation import evaluate_run
from sebulba.validation import ConfigError

USAGE = """\
usage: sebulba COMMAND ...

  sebulba train PRESET [options]   train; sebulba train PRESET --help lists every option
  sebulba eval RUN_DIR [options]   play whole episodes with a run's last checkpoint
  sebulba presets                  list the presets
  sebulba tune PRESET [options]    find the fastest setting on this machine, in a few minutes
  sebulba pod --hosts N -- train PRESET [options]
                                   train in N processes on this machine
  sebulba plan PRESET --slice v5e-16 [options]
                                   what it would do on a Cloud TPU slice; needs no TPU

On several hosts, start the same train command on each of them. JAX finds the others on Cloud TPU
slices and under SLURM; elsewhere, add --coordinator HOST:PORT --num-processes N --process-id I.
"""
LAUNCH_USAGE = """\
On each of several hosts, where JAX does not find the others by itself:

  --coordinator HOST:PORT   of process 0
  --num-processes N         how many there are
  --process-id I            which one this is, from 0
"""
PLAN_USAGE = """\
usage: sebulba plan PRESET --slice NAME [options]

Compiles the preset's inference step and update with the real TPU compiler, for every sensible
layout, and estimates what each could sustain. It needs Linux and the extra tpu, and no TPU.

  --slice NAME           v3-8, v4-4096, v5litepod-16, v5e-16, v5p-8, v6e-8, ...
  --steps-per-core X     agent steps/s of the environment on one CPU core (default: 1500,
                         measured with Breakout)
  --json                 for machines
  every option of sebulba train PRESET
"""
TUNE_USAGE = """\
usage: sebulba tune PRESET [options]

Trains for a few seconds with each of several settings that leave the learner's batch as it is:
environments of an actor, actors of a device, threads of an actor's environments, pieces of an
update. Prints agent steps/s and writes the options of the fastest so far, for:
sebulba train PRESET $(cat FILE)

  --seconds X            of each trial, once it is compiled (default: 6)
  --write FILE           where the options go (default: PRESET.tuned)
  every option of sebulba train PRESET
"""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits with 2 where the input is wrong, 130 where interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {
        "train": _train,
        "eval": _evaluate,
        "presets": _presets,
        "tune": _tune,
        "pod": _pod,
        "plan": _plan,
    }
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        sys.exit(0 if words else 2)
    try:
        if words[0] not in commands:
            raise ConfigError(
                f"command {words[0]!r} is unknown: it must be one of {list(commands)}."
            )
        commands[words[0]](words[1:])
    except ConfigError as error:
        console = Console(stderr=True, highlight=False)
        console.print("[bold red]error:[/]", escape(str(error)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _train(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print("usage: sebulba train PRESET [options]\n")
        _presets([])
        print("\nsebulba train PRESET --help lists every option with the preset's values.")
        sys.exit(0 if words else 2)
    default = _preset(words[0], "train")
    launch, options = _launch(words[1:])
    _help(words[1:], LAUNCH_USAGE)
    config = parse(default, options)
    distributed.initialize(launch.coordinator, launch.num_processes, launch.process_id)
    if config.out is None and distributed.num_hosts() > 1:
        raise ConfigError(
            f"out is None, but {distributed.num_hosts()} hosts write one run directory: name a "
            "place that all of them reach with --out."
        )
    if config.out is None and not config.resume:
        config = dataclasses.replace(config, out=_new_directory(config))
    try:
        result = training.train(config)
    except KeyboardInterrupt:
        _say(_interrupted(config))
        raise
    assert config.out is not None
    if distributed.is_primary():
        _report(config.out, result.metrics)


def _preset(word: str, command: str) -> Config:
    if word.startswith("-"):
        raise ConfigError(
            f"the preset must come first, but got {word!r}: sebulba {command} PRESET [options]. "
            "See: sebulba presets."
        )
    return presets.get(word)


def _launch(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """How this process joins others, which is no part of the config, and the other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    return parser.parse_known_args(words)


def parse(default: Config, words: Sequence[str]) -> Config:
    """The config that the options ``words`` make of ``default``.

    With ``--resume``, the saved config of the run directory is the default.
    """
    config = _parse(default, words)
    if config.resume and config.out is not None:
        saved = load_config(config.out)
        if saved.preset != default.preset:
            command = _resume_command(saved.preset, config.out)
            raise ConfigError(
                f"{config.out} was trained with the preset {saved.preset!r}, not "
                f"{default.preset!r}: resume it "
                + (f"with: {command}" if saved.preset else "from Python, where it was configured.")
            )
        config = _parse(dataclasses.replace(saved, resume=False), words)
    return config


def _parse(default: Config, words: Sequence[str], command: str = "train") -> Config:
    config = tyro.cli(
        type(default),
        default=default,
        args=words,
        prog=f"sebulba {command} {default.preset}",
        description=type(default).__doc__,
    )
    # A shell leaves the ~ in --out=~/runs as it is.
    out = config.out and config.out.expanduser()
    return dataclasses.replace(config, out=out)


def _help(words: Sequence[str], usage: str) -> None:
    """Print what the help on a preset's options, which comes next, does not know of."""
    if {"-h", "--help"} & set(words):
        print(usage)


@dataclasses.dataclass(frozen=True)
class PodOptions:
    """Train in several local processes, as hosts of a pod: for development and tests.

    The command comes after a --, as in: sebulba pod --hosts 2 -- train PRESET --out DIR
    """

    hosts: int = 2
    devices_per_host: int = 4
    """CPU devices of each process."""


def _pod(words: list[str]) -> None:
    separator = words.index("--") if "--" in words else len(words)
    options = tyro.cli(PodOptions, args=words[:separator], prog="sebulba pod")
    command = words[separator + 1 :]
    if command[:1] != ["train"]:
        raise ConfigError(
            f"the command is {command}: a pod trains. Write it after a --, as in: sebulba pod "
            "--hosts 2 -- train vtrace-catch --out DIR"
        )
    if options.hosts < 1 or options.devices_per_host < 1:
        raise ConfigError(
            f"hosts is {options.hosts} and devices_per_host is {options.devices_per_host}: both "
            "must be above 0."
        )
    exits = pod.run(options.hosts, options.devices_per_host, command)
    failures = [end for end in exits if end.code != 0]
    if failures:
        first = failures[0]
        how = f"signal {-first.code}" if first.code < 0 else f"exit code {first.code}"
        _say(f"host {first.host} ended first, with {how}")
        sys.exit(first.code if first.code > 0 else 128 - first.code)


def _plan(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(PLAN_USAGE, end="")
        sys.exit(0 if words else 2)
    default = _preset(words[0], "plan")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--slice", default="")
    parser.add_argument("--steps-per-core", type=float, default=plan.STEPS_PER_CORE)
    parser.add_argument("--json", action="store_true")
    options, rest = parser.parse_known_args(words[1:])
    _help(rest, PLAN_USAGE)
    config = _parse(default, rest, "plan")
    # The compiler works for devices that are not here; those that are must be left alone.
    jax.config.update("jax_platforms", "cpu")
    made = plan.make(config, options.slice, options.steps_per_core)
    if options.json:
        print(json.dumps(dataclasses.asdict(made), indent=1))
    else:
        rich.print(plan_table.render(made))


def _tune(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(TUNE_USAGE, end="")
        sys.exit(0 if words else 2)
    default = _preset(words[0], "tune")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--write", type=Path, default=Path(f"{default.preset}.tuned"))
    options, rest = parser.parse_known_args(words[1:])
    if options.seconds <= 0:
        raise ConfigError(f"seconds is {options.seconds}: it must be above 0. Set --seconds.")
    _help(rest, TUNE_USAGE)
    config = _parse(default, rest, "tune")
    trials: list[tune.Trial] = []
    with tune.TrainingRate(options.seconds) as measure:
        for trial in tune.search(config, measure):
            trials.append(trial)
            best = max(trials, key=lambda trial: trial.steps_per_second)
            if best.error is None:  # At once: whatever ends this early leaves the best so far.
                options.write.write_text(best.options() + "\n")
            _say(_shown(trial))
    if best.error is not None:
        raise ConfigError(
            f"no setting of {default.preset} trains on this machine; the first ended with "
            f"{trials[0].error}. See all of it with: "
            + " ".join(["sebulba train", default.preset, *rest])
        )
    first = trials[0].steps_per_second
    gain = f" ({best.steps_per_second / first:.2f} times the first)" if first else ""
    _say(f"best: {best.options()}{gain}. Train with it by:")
    _say(" ".join(["sebulba train", default.preset, *rest, f"$(cat {options.write})"]))


def _shown(trial: tune.Trial) -> str:
    if trial.error is not None:
        return f"{'failed':>10}          {trial.options()}  {trial.error}"
    return f"{trial.steps_per_second:10,.0f} steps/s  {trial.options()}"


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Play whole episodes with a checkpoint of a run and report the true return."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """The directory that --out named when training."""
    episodes: int = 100
    greedy: bool = False
    """Take the best action: no sampling (V-trace), no random ones (R2D2)."""
    seed: int = 0
    checkpoint: int | None = None
    """Name of the checkpoint: the turns behind it. None: the last."""
    json: bool = False
    """For machines: print one JSON object, with every return."""


def _evaluate(words: list[str]) -> None:
    options = tyro.cli(EvalOptions, args=words, prog="sebulba eval")
    result = evaluate_run(
        options.run_dir,
        options.episodes,
        greedy=options.greedy,
        seed=options.seed,
        checkpoint=options.checkpoint,
    )
    if options.json:
        summary = {"update": result.update, "greedy": options.greedy, **result.summary()}
        if options.episodes == 1:
            summary["standard_error"] = None
        print(json.dumps({**summary, "returns": result.returns.tolist()}, allow_nan=False))
        return
    how = " · greedy" if options.greedy else ""
    table = Table(title=f"{options.run_dir} · update {result.update}{how}", min_width=36)
    table.add_column("true return")
    table.add_column("", justify="right")
    for name, value in result.summary().items():
        table.add_row(name.replace("_", " "), f"{value:,.6g}")
    rich.print(table)


def _presets(words: list[str]) -> None:
    if words and words[0] not in ("-h", "--help"):
        raise ConfigError(f"sebulba presets takes no arguments, but got {words}.")
    table = Table("preset", "environment", "steps", "what it is", box=None)
    for name, (config, text) in presets.PRESETS.items():
        table.add_row(name, config.env, f"{config.total_steps:,}", text)
    rich.print(table)


def _interrupted(config: Config) -> str:
    assert config.out is not None
    if not has_checkpoints(config.out):
        return "Interrupted before the first checkpoint: nothing was saved."
    command = _resume_command(config.preset, config.out)
    return f"Interrupted; go on from the last checkpoint with: {command}"


def _resume_command(preset: str, out: Path) -> str:
    return shlex.join(["sebulba", "train", preset, "--out", str(out), "--resume"])


def _new_directory(config: Config) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    env = config.env.replace("/", "-")
    return Path("runs") / f"{config.preset}-{env}-s{config.seed}-{now}"


def _report(out: Path, rows: Sequence[dict[str, float | int | None]]) -> None:
    last = rows[-1]
    mean = last["episode_return_mean_100"]
    if mean is not None:
        _say(f"Return, mean of the last 100 episodes: {mean:.2f}")
    _say(f"{last['steps']:,} steps in {last['seconds']:.1f} s. Run directory: {out}")
    _say(f"Evaluate it with: {shlex.join(['sebulba', 'eval', str(out)])}")


def _say(text: str) -> None:
    # Not by rich, which would wrap what is there to be copied, and exit where nobody reads it.
    with contextlib.suppress(OSError):
        print(text, flush=True)
