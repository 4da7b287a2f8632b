"""How options are made of dataclasses."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

from sebulba.cli import options
from sebulba.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(Config):
    """A config of somebody's own.

    Attributes:
      lambda_: it is documented here.
    """

    lambda_: float = 1.0
    # Not for users.
    other: int = 3
    """A text that is longer than a line of the source may be, so that it goes on in the next: and
    is one text here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Nothing that users see."""

    config: Annotated[Config, options.UNPREFIXED]
    mine: int = 1


def parse(*words: str) -> Options:
    default = Options(config=OwnConfig(preset="own"))
    return options.parse(default, words, "prog", OwnConfig.__doc__)


def test_options_of_the_config_have_no_prefix_and_its_own_class() -> None:
    given = parse(
        "--lambda", "0.5", "--network.core", "lstm", "--mine", "2", "--env-options", "a", "3"
    )
    assert given.mine == 2
    assert given.config == OwnConfig(
        preset="own",
        lambda_=0.5,
        env_options={"a": 3},
        network=dataclasses.replace(Config().network, core="lstm"),
    )


def test_options_of_the_environment_are_laid_over_those_of_the_preset() -> None:
    default = OwnConfig(preset="own", env_options={"size": 56, "name": "a"})
    words = ["--env-options", "size", "42", "sticky", "True", "level", "-1.5", "path", "b c"]
    given = options.parse(default, words, "prog", None).env_options
    assert given == {"size": 42, "name": "a", "sticky": True, "level": -1.5, "path": "b c"}
    assert given["sticky"] is True and isinstance(given["size"], int)
    assert options.parse(default, [], "prog", None).env_options == default.env_options


def test_an_option_of_the_environment_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--env-options", "size", "42", "sticky")
    assert end.value.code
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "got size 42 sticky: each KEY must have a VALUE after it" in error


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "125")
    with pytest.raises(SystemExit) as end:
        parse("--help")
    assert not end.value.code
    output = capsys.readouterr().out
    assert "A config of somebody's own.\n" in output and "Attributes" not in output
    words = " ".join(output.replace("│", " ").split())
    assert "--lambda FLOAT it is documented here. (default: 1.0)" in words
    assert "it goes on in the next: and is one text here. (default: 3)" in words
    assert "Not for users" not in output
    assert "--env-options KEY VALUE ..." in output and "--preset" not in output
    assert "Nothing that users see" not in output


@pytest.mark.parametrize(("columns", "width"), [("70", 70), (None, 120)])
def test_help_is_as_wide_as_the_terminal(
    columns: str | None,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        options.parse(Options(config=Config()), ["--help"], "prog", "word " * 100)
    assert max(map(len, capsys.readouterr().out.splitlines())) == width


def test_names_of_files() -> None:
    assert options.file_name("my.module:preset-Some/Env-v0") == "my.module-preset-Some-Env-v0"


SCRIPTS = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("path", "directory", "name"),
    [
        (f"{SCRIPTS}:/usr/bin:/bin", "another", "sebulba"),
        ("/usr/bin:/bin", SCRIPTS.parent, f"{SCRIPTS.name}/sebulba"),
        ("/usr/bin:/bin", "another", f"{SCRIPTS}/sebulba"),
    ],
)
def test_a_command_to_paste_works_in_a_shell_here(
    path: str, directory: str | Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "another").mkdir()
    monkeypatch.chdir(tmp_path / directory)
    monkeypatch.setenv("PATH", path)
    command = options.to_paste("presets", "a b", "--help")
    assert command == f"{name} presets 'a b' --help"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "usage: sebulba presets" in done.stdout
