"""The command line: ``sebulba train | eval | presets``."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import rich
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sebulba import presets, runner
from sebulba.config import Config, ConfigError
from sebulba.evaluate import evaluate_run
from sebulba.rundir import load_config

USAGE = """\
usage: sebulba COMMAND ...

  sebulba train PRESET [options]   train; sebulba train PRESET --help lists every option
  sebulba eval RUN_DIR [options]   play whole episodes with a run's last checkpoint
  sebulba presets                  list the presets
"""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits with 2 where the input is wrong, 130 where interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"train": _train, "eval": _evaluate, "presets": _presets}
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
    if words[0].startswith("-"):
        raise ConfigError(
            f"the preset must come first, but got {words[0]!r}: sebulba train PRESET [options]. "
            "See: sebulba presets."
        )
    default = presets.get(words[0])
    config = parse(default, words[1:])
    if config.out is None and not config.resume:
        config = dataclasses.replace(config, out=_new_directory(config))
    try:
        result = runner.train(config)
    except KeyboardInterrupt:
        _say(
            "Interrupted; go on from the last checkpoint with: sebulba train "
            f"{config.preset} --out {config.out} --resume"
        )
        raise
    assert config.out is not None
    _report(config.out, result.metrics)


def parse(default: Config, words: Sequence[str]) -> Config:
    """The config that the options ``words`` make of ``default``.

    With ``--resume``, the saved config of the run directory is the default.
    """
    config = _parse(default, words)
    if config.resume and config.out is not None:
        saved = load_config(config.out)
        if saved.preset != default.preset:
            raise ConfigError(
                f"{config.out} was trained with the preset {saved.preset}, not "
                f"{default.preset}: resume it with: sebulba train {saved.preset} --out "
                f"{config.out} --resume"
            )
        config = _parse(dataclasses.replace(saved, resume=False), words)
    return config


def _parse(default: Config, words: Sequence[str]) -> Config:
    return tyro.cli(
        type(default),
        default=default,
        args=words,
        prog=f"sebulba train {default.preset}",
        description=type(default).__doc__,
    )


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Play whole episodes with the last checkpoint of a run and report the true return."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """The directory that --out named when training."""
    episodes: int = 100
    greedy: bool = False
    """Take the most probable action instead of sampling."""
    seed: int = 0


def _evaluate(words: list[str]) -> None:
    options = tyro.cli(EvalOptions, args=words, prog="sebulba eval")
    result = evaluate_run(
        options.run_dir, options.episodes, greedy=options.greedy, seed=options.seed
    )
    how = "greedy" if options.greedy else "sampling"
    table = Table(title=f"{options.run_dir} · update {result.update} · {how}", min_width=36)
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
    _say(f"Evaluate it with: sebulba eval {out}")


def _say(text: str) -> None:
    # Not wrapped: paths and commands are there to be copied.
    Console().print(escape(text), soft_wrap=True)
