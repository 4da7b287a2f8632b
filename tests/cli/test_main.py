"""Which command runs, how it exits, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command_line import assert_refused, call

from sebulba.runners import training
from sebulba.validation import ConfigError


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["-h"], 0), ([], 2)])
def test_help_lists_the_commands(
    words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(words) == code
    output, errors = capfd.readouterr()
    assert errors == ""
    for text in ("usage: sebulba", "train", "eval", "presets", "tune", "pod", "plan"):
        assert text in output
    assert "Find the fastest setting of a preset on this machine" in output


@pytest.mark.parametrize(
    ("word", "hint"),
    [("trian", "mean train?"), ("--train", "mean train?"), ("x", "see: sebulba --help.")],
)
def test_unknown_command(word: str, hint: str, capfd: pytest.CaptureFixture[str]) -> None:
    commands = "train, eval, presets, tune, sweep, pod, plan, runs, plot, export"
    assert_refused([word], [f"sebulba {word} is unknown", commands, hint], capfd)


def test_an_interrupt_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    assert call(["train", "vtrace-catch", "--out", "run"]) == 130
    assert "nothing was saved" in capfd.readouterr().out


def test_an_error_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object, **__: object) -> None:
        error = ConfigError("the environment is faulty.")
        error.add_note("in thread actor-1")
        error.add_note("For simplicity, JAX has removed its internal frames")
        raise error

    monkeypatch.setattr(training, "train", refuses)
    assert call(["train", "vtrace-catch"]) == 2
    assert capfd.readouterr().err.endswith("is faulty.\nin thread actor-1\n")


@pytest.mark.parametrize("words", [["--help"], ["eval", "--help"], ["pod", "--help"]])
def test_help_is_quick(words: list[str]) -> None:
    program = (
        "import json, sys\nfrom sebulba.cli.main import main\n"
        f"try: main({words})\nexcept SystemExit: pass\n"
        "print(json.dumps([name for name in sys.modules if '.' not in name]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert "tyro" in imported
    assert not imported & {"jax", "numpy", "flax", "optax", "orbax", "envpool"}
