"""What the documents tell a reader to type works, and what they name is there.

Python blocks run, with few steps. Shell commands read all their options, and stop where they would
train, evaluate, tune or plan: so presets and options exist, and their values are allowed.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from whole_runs import on, rows_of, tiny_evaluated, tiny_ppo, tiny_pqn

import sebulba
from sebulba import NetworkConfig, R2D2Config, ReplayConfig, algorithms
from sebulba.cli.main import main as command_line
from sebulba.config import Config
from sebulba.devices import cluster, tpu_slices
from sebulba.planning import plan, tune
from sebulba.planning.sweep import Trial
from sebulba.remote.settings import Listen
from sebulba.rundir import reading
from sebulba.runners import training

PAGES = [
    *("README.md", "CONTRIBUTING.md", "examples/README.md"),
    *("benchmarks/README.md", "benchmarks/peers.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks in one of ``languages``; "" is a block that names none."""
    return [text for language, text in FENCED.findall(read(page)) if language in languages]


def spans(page: str) -> list[str]:
    """What stands in single backticks."""
    prose = FENCED.sub("", read(page))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


# Python.


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in one module."""

    def briefly(config: Config, **parts: Any) -> sebulba.TrainResult:
        config = dataclasses.replace(config, total_steps=2000)
        return training.train(config, topology=on(1), progress=False, **parts)

    monkeypatch.setattr(sebulba, "train", briefly)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)


# Commands.


class Reached(Exception):
    """A command has read all its options."""


@pytest.fixture
def commands_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands raise ``Reached`` in place of their work, and remember which runs there are."""
    runs: dict[Path, Config] = {}

    def train(config: Config, listen: Listen) -> None:
        config.validate()
        algorithms.of(config).unrolls_per_turn(config)
        assert config.out is not None
        runs[config.out] = config
        raise Reached

    def of_a_run(run: Path, *_: Any, **options: Any) -> None:
        assert run in runs
        raise Reached

    def of_runs(*found: Path) -> None:
        assert all(any(run.is_relative_to(top) for run in runs) for top in found)
        raise Reached

    def plan_for(config: Config, slice_name: str, steps_per_core: float | None) -> None:
        tpu_slices.parse(slice_name)
        raise Reached

    def train_all(trials: Sequence[Trial], say: Callable[[str], None]) -> None:
        runs.update({trial.directory: Config() for trial in trials})
        raise Reached

    def search(*_: Any) -> None:
        raise Reached

    def serve(given: Any) -> None:
        raise Reached

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr("sebulba.cli.env_host._serve", serve)
    monkeypatch.setattr(reading, "load_config", runs.__getitem__)
    for name in ("evaluation.evaluate_run", "exporting.export"):
        monkeypatch.setattr(f"sebulba.runners.{name}", of_a_run)
    monkeypatch.setattr("sebulba.rundir.run.find_runs", of_runs)
    monkeypatch.setattr("sebulba.planning.sweep.train", train_all)
    monkeypatch.setattr(tune, "search", search)
    monkeypatch.setattr(plan, "make", plan_for)
    monkeypatch.setattr("sebulba.cli.pod_processes.run", lambda *args: command_line(args[-1]))
    monkeypatch.setattr(cluster, "initialize", lambda *_, **__: None)
    # Where a `cd` leads, presets of the user's own are found.
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("commands_stop")
@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in [*blocks(page, "", "sh", "bash"), *filter(can_be_typed, spans(page))]:
        monkeypatch.chdir(ROOT)
        for words in commands(text):
            understand(words, monkeypatch.chdir)


def can_be_typed(span: str) -> bool:
    """As it stands: without ``PRESET``, ``N`` or ``...``, and not the mere name of a command."""
    stands_for = re.search(r"\b[A-Z][A-Z_]*(?=[ :]|$)|\.\.\.", span)
    return bool(re.match(r"(sebulba|\./run|python) \S+ ", span)) and not stands_for


def commands(text: str) -> Iterator[list[str]]:
    """The words of every simple command, those inside quotes included."""
    text = re.sub(r"\\\n", " ", text)
    # Comments, redirections, and what another command would fill in.
    text = re.sub(r"(?m)(^|\s)#.*$|\d?>&?\s*\S+|\$\([^)]*\)", "", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    for is_end, words in itertools.groupby(lexer, lambda word: set(word) <= set(";&|\n")):
        if is_end:
            continue
        command = list(words)
        yield command
        for word in command:
            if "\n" in word or " " in word:
                yield from commands(word)


def understand(words: list[str], change_directory: Callable[[Path], None]) -> None:
    """Fail unless this command of ours would start its work; those of others are let be."""
    program, *rest = itertools.dropwhile({"srun", "nohup"}.__contains__, words)
    if program == "cd":
        change_directory(ROOT / rest[0])
    elif program == "./run" and rest[0] in ("check", "docs", "test"):
        assert f"\n{rest[0]})\n" in read("run")
    elif program.removeprefix(".venv/bin/") in ("./run", "sebulba"):
        start(rest)
    elif program == "python" and rest[0] != "-m":
        start_script(*rest)


def start(words: list[str]) -> None:
    """Run the command line; it says itself what is wrong with ``words``."""
    try:
        command_line(words)
    except Reached:
        pass
    except SystemExit as end:  # Help, or an error.
        assert not end.code, words


def start_script(script: str, *words: str) -> None:
    """The script is there and has these options, or the preset does."""
    source = (ROOT / script).read_text()
    own = list(itertools.takewhile("--".__ne__, words))
    for_preset = list(words[len(own) + 1 :])
    for word in own:
        if word.startswith("--"):
            assert re.search(rf"\b{word[2:].replace('-', '_')}\b", source), (script, word)
    if script == "benchmarks/throughput.py":
        start(["train", own[0], *for_preset])
    if script == "benchmarks/sweep.py":
        preset, option, *values = itertools.takewhile(lambda word: word[:2] != "--", own)
        for value in values:
            start(["train", preset, f"--{option}", value, *for_preset])


# Names.


WITHOUT_PRESET = ("env-host", "eval", "export", "plot", "pod", "runs")


def options_there_are(capfd: pytest.CaptureFixture[str]) -> set[str]:
    """Of our commands, by their help, and of the examples and benchmarks."""
    algorithms = ("vtrace-catch", "ppo-cartpole", "pqn-cartpole", "r2d2-catch")
    for command in (*(f"train {preset}" for preset in algorithms), "tune r2d2-catch"):
        start([*command.split(), "--help"])
    for command in ("plan vtrace-catch", "sweep vtrace-catch", *WITHOUT_PRESET):
        start([*command.split(), "--help"])
    there_are = set(re.findall(r"--[a-z][\w.-]*", capfd.readouterr().out))
    for script in (*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")):
        names = re.findall(r"^    (\w+): ", script.read_text(), re.MULTILINE)
        there_are |= {f"--{name.replace('_', '-')}" for name in names}
    return there_are


def test_options_are_called_so(capfd: pytest.CaptureFixture[str]) -> None:
    there_are = options_there_are(capfd)
    others = {"--worker", "--logdir", "--fix"}  # Of gcloud, TensorBoard and ruff.
    for page in PAGES:
        if page.startswith("benchmarks/"):
            continue  # They say what options were called when something was measured.
        for span in spans(page):
            named = {word.partition("=")[0] for word in span.split() if re.match(r"--\w", word)}
            assert named <= there_are | others, (page, span)


@pytest.mark.parametrize("page", PAGES)
def test_files_and_sections_are_there(page: str) -> None:
    folder = (ROOT / page).parent
    for target, _, section in re.findall(r"\]\(([^)#]*)(#([^)]*))?\)", read(page)):
        if target.startswith("http"):
            continue
        file = folder / target if target else ROOT / page
        assert file.exists(), target
        if section:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert section in slugs, f"{target}#{section}"
    others = {"cleanba_impala.py", "cleanba_ppo.py", "ff_impala.py", "ff_ppo.py"}
    for span in spans(page):
        path = span.split()[0]
        if re.fullmatch(r"[\w./-]+\.(py|md)", path) and path not in others:
            places = [ROOT, ROOT / "sebulba", ROOT / "tests", folder]
            assert any((place / path).exists() for place in places), path


# Metrics.


def documented() -> dict[str, set[str]]:
    """The names in each table of docs/metrics.md, by its title."""
    tables: dict[str, set[str]] = {}
    title = ""
    for line in read("docs/metrics.md").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4:
            title = ""
        elif not title:
            title = cells[1]
        else:
            tables.setdefault(title, set()).update(re.findall(r"`(\w+)`", cells[1]))
    return tables


R2D2 = R2D2Config(
    env="sebulba/Catch",
    total_steps=800,
    envs_per_actor=12,
    unroll_length=5,
    sequence_length=10,
    burn_in=4,
    batch_size=12,
    log_every=2,
    network=NetworkConfig(hidden_sizes=(8,)),
    replay=ReplayConfig(capacity=120, min_size=48),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (
            tiny_evaluated(),
            ("V-trace and PPO only", "with evaluation during training, on the primary host"),
        ),
        (tiny_ppo(), ("PPO only", "V-trace and PPO only")),
        (tiny_pqn(), ("R2D2 and PQN only",)),
        (R2D2, ("R2D2 only", "R2D2 and PQN only")),
    ],
    ids=["V-trace", "PPO", "PQN", "R2D2"],
)
def test_every_metric_is_documented(config: Config, parts: tuple[str, ...], tmp_path: Path) -> None:
    config = dataclasses.replace(config, out=tmp_path / "run")
    sebulba.train(config, topology=on(1), progress=False)
    written: set[str] = set().union(*rows_of(tmp_path / "run"))
    tables: Mapping[str, set[str]] = documented()
    assert len(tables) == 7
    # Of games of Atari, and where episodes do not end.
    elsewhere = {"evaluation_human_normalized", "evaluation_cut_off"}
    told = set().union(*(tables[title] for title in ("every run", *parts)))
    assert written == told - elsewhere
