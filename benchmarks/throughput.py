"""Agent steps/s of training, of each of its parts alone, and how near training is to their bound.

    python benchmarks/throughput.py vtrace-atari-shallow --out benchmarks/results/throughput_atari
    python benchmarks/throughput.py vtrace-cartpole --seconds 3 -- --network.hidden-sizes 256 256
    python benchmarks/throughput.py vtrace-cartpole --compare main HEAD

Options of the preset's config go after a ``--``. What is measured:

  a  the environments alone, with random actions, in several pools and numbers of threads
  b  acting alone: the actors' own program on the inference devices, at several batch sizes
  c  updates alone: the preset's learner on one batch, or on a filled replay
  d  transfers alone: observations, parameters, and unrolls where devices differ
  e  training on recorded timesteps, which cost nothing
  f  training

Every repeat goes through all parts in turn, so that the drift of the machine meets all of them.
Compilations, the filling of a replay (which is shortened) and the first updates are left out.

The bound is what training could reach if nothing but its three works cost time; ``a`` is the best
setting of all. On a CPU the works share the cores, and each was measured with all of them, so their
times for one step add up: 1 / (1/a + 1/b + 1/c), with ``b`` the best at the preset's batch size. On
accelerators the works overlap, and the slowest is the bound: min(a, b, c), with ``b`` the best
setting of all; also where one device acts and learns, although those two works then share it. The
efficiency is f / bound, from the figures of one and the same repeat.

Steps are agent steps; times the frame skip they are frames. The auto-reset steps of environments,
which are no real ones, are not counted in a, e and f.

OUT.json holds every repeat, OUT.md the medians, OUT.png a plot; all are written after each repeat.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import jax
import throughput_parts
import throughput_report
import tyro

from sebulba import presets
from sebulba.cli.train import parse
from sebulba.config import Config, to_json
from sebulba.validation import ConfigError

ROOT = Path(__file__).resolve().parent.parent
COMPARED = ("b", "c", "f")


@dataclasses.dataclass(frozen=True)
class Options:
    """Agent steps/s of training and of each of its parts alone.

    Options of the preset's config go after a --, as in: throughput.py vtrace-cartpole
    --repeats 3 -- --envs-per-actor 64 --batch-size 64
    """

    preset: Annotated[str, tyro.conf.Positional]
    env: str | None = None
    """Environment, in place of the preset's."""
    repeats: int = 5
    """Times that all parts are measured in turn."""
    seconds: float = 5.0
    """Of each measurement; half of it for each setting where a part has several."""
    parts: tuple[Literal["a", "b", "c", "d", "e", "f"], ...] = ("a", "b", "c", "d", "e", "f")
    """What to measure; the bound needs a, b and c."""
    compare: tuple[str, str] | None = None
    """Two git revisions, whose b, c and f are measured in alternation."""
    out: Path | None = None
    """Files to write, without their suffix; None: benchmarks/results/throughput_PRESET."""


class Measured(Protocol):
    """Options of a benchmark that repeats itself."""

    repeats: int
    seconds: float


Chosen = TypeVar("Chosen", bound=Measured)


def read(kind: type[Chosen], words: Sequence[str]) -> tuple[Chosen, Sequence[str]]:
    """The options, and the words after a --, which are the config's.

    Raises:
      ConfigError: nothing would be measured.
    """
    separator = list(words).index("--") if "--" in words else len(words)
    options = tyro.cli(kind, args=words[:separator])
    if options.repeats < 1 or options.seconds <= 0:
        raise ConfigError(
            f"repeats is {options.repeats} and seconds is {options.seconds}: both must be above 0. "
            "Set them with --repeats and --seconds."
        )
    return options, words[separator + 1 :]


def main(words: Sequence[str]) -> None:
    """Measure, print, and write OUT.json, OUT.md and OUT.png."""
    options, rest = read(Options, words)
    config_words = [*(["--env", options.env] if options.env else []), *rest]
    config = parse(presets.get(options.preset), config_words).config
    out = options.out or ROOT / "benchmarks" / "results" / f"throughput_{options.preset}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        if options.compare is None:
            command = shlex.join(["python", "benchmarks/throughput.py", *words])
            measure(options, config, Path(scratch), {"command": command}, out)
        else:
            compare(options, config_words, Path(scratch), out)


def measure(
    options: Options, config: Config, scratch: Path, report: dict[str, Any], out: Path
) -> None:
    """All parts in turn, again and again."""
    keep_compilations(scratch)
    setup = throughput_parts.prepare(config)
    report |= {
        "machine": throughput_report.machine(),
        "layout": str(setup.topology),
        "frame_skip": setup.spec.frame_skip,
        "config": json.loads(to_json(setup.config, setup.algorithm.name)),
        "repeats": [],
    }
    print(f"{config.preset} · {config.env} · {setup.topology}: compiling", flush=True)
    parts = throughput_parts.parts(setup, options.parts)
    for number in range(options.repeats):
        report["repeats"].append({})
        for name in options.parts:
            seconds = options.seconds / (1 if len(parts[name]) == 1 else 2)
            found = {setting: take(seconds) for setting, take in parts[name].items()}
            report["repeats"][-1][name] = found
            best = max(row["steps_per_second"] for row in found.values())
            print(f"repeat {number + 1}  {name}  {best:12,.0f} steps/s", flush=True)
        report["machine"]["load_at_end"] = os.getloadavg()
        throughput_report.write(report, out)
    print(throughput_report.table(report))


def keep_compilations(scratch: Path) -> None:
    """For each repeat of training, which compiles the same programs again.

    They go to ``scratch``, or to JAX_COMPILATION_CACHE_DIR, which other commands may share.
    """
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(scratch))
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def compare(options: Options, words: Sequence[str], scratch: Path, out: Path) -> None:
    """Ratios of two revisions, B to A, measured in alternation: A B A B ..."""
    assert options.compare is not None
    found: list[list[dict[str, float]]] = [[], []]
    with contextlib.ExitStack() as stack:
        trees = [
            stack.enter_context(worktree(revision, scratch / name))
            for revision, name in zip(options.compare, "ab", strict=True)
        ]
        for number in range(options.repeats):
            for tree, rows in zip(trees, found, strict=True):
                rows.append(measure_tree(tree, options, words, scratch))
                shown = "  ".join(f"{name} {value:,.0f}" for name, value in rows[-1].items())
                print(f"repeat {number + 1}  {tree.name}  {shown} steps/s", flush=True)
    result: dict[str, Any] = {"revisions": options.compare, "steps_per_second": found}
    print(
        f"{options.compare[1]} / {options.compare[0]}: ratio of medians (least to most of a pair)"
    )
    for name in COMPARED:
        before, after = ([row[name] for row in rows] for rows in found)
        ratios = [new / old for old, new in zip(before, after, strict=True)]
        ratio = statistics.median(after) / statistics.median(before)
        result[name] = {"ratio": ratio, "of_pairs": ratios}
        print(f"{name}  {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    Path(f"{out}_compared.json").write_text(json.dumps(result, indent=1) + "\n")


@contextlib.contextmanager
def worktree(revision: str, path: Path) -> Iterator[Path]:
    """The files of ``revision`` at ``path``, removed again at the end."""
    git = ["git", "-C", str(ROOT)]
    verify = [*git, "rev-parse", "-q", "--verify", f"{revision}^{{commit}}"]
    known = subprocess.run(verify, stdout=subprocess.DEVNULL)
    if known.returncode:
        raise ConfigError(
            f"revision {revision!r} is unknown: it must name a commit of {ROOT}. See: git log."
        )
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(path), revision], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(path)], check=True)


def measure_tree(
    tree: Path, options: Options, words: Sequence[str], scratch: Path
) -> dict[str, float]:
    """Agent steps/s of the library in ``tree``, measured by its own copy of this file."""
    out = scratch / "report"
    subprocess.run(
        [
            *(sys.executable, str(tree / "benchmarks" / Path(__file__).name), options.preset),
            *("--repeats", "1", "--seconds", str(options.seconds), "--out", str(out)),
            *("--parts", *COMPARED, "--", *words),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "JAX_COMPILATION_CACHE_DIR": str(scratch / "cache"),
        },
        check=True,
        stdout=subprocess.DEVNULL,
    )
    summary = throughput_report.summarize(json.loads(Path(f"{out}.json").read_text()))
    return {name: summary[name]["median"] for name in COMPARED}


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(f"error: {error}")
