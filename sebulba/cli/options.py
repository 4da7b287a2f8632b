"""How the commands read their options."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import itertools
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from sebulba.cli import output
from sebulba.config import Config, Option
from sebulba.runtime.watchdog import WRONG_INPUT
from sebulba.validation import ConfigError

T = TypeVar("T")

UNPREFIXED = tyro.conf.arg(name="")
"""For a field that is a dataclass: its options are named as if they were the command's own."""
_HELP = {"-h", "--help"}
_REGISTRY = ConstructorRegistry()


def parse(default: T, words: Sequence[str], prog: str, description: str | None) -> T:
    """What the options ``words`` make of ``default``, a dataclass of a command's options.

    Help that is asked for, or what is wrong with an option, is printed and ends the program.
    """
    with output.ending_where_unread(), _width_for_tyro():
        return tyro.cli(
            type(default),
            default=default,
            args=words,
            prog=prog,
            description=_paragraphs(description),
            registry=_REGISTRY,
        )


def choose(
    choices: Mapping[str, str], words: Sequence[str], prog: str, description: str | None
) -> str:
    """The one of ``choices`` (and what each is) that ``words`` begin with.

    All of them are printed, and the program ends, where help is asked for or there are no words.

    Raises:
      ConfigError: it is none of them; the message says which is close.
    """
    if words and words[0] not in {*choices, *_HELP}:
        close = difflib.get_close_matches(words[0], choices, 1)
        hint = f"did you mean {close[0]}?" if close else f"see: {prog} --help."
        raise ConfigError(
            f"{prog} {words[0]} is unknown: it must be one of {', '.join(choices)}; {hint}"
        )
    app = tyro.extras.SubcommandApp()
    for name, text in choices.items():
        app.command(name=name, help=text)(functools.partial(_chosen, name))
    with output.ending_where_unread(), _width_for_tyro():
        try:
            chosen: str = app.cli(
                args=words[:1] or ["--help"], prog=prog, description=_paragraphs(description)
            )
            return chosen
        except SystemExit:
            sys.exit(0 if _HELP & set(words[:1]) else WRONG_INPUT)


def to_paste(*words: str) -> str:
    """The command ``sebulba`` with these ``words``, as a shell takes it in this directory."""
    script, found = Path(sys.executable).with_name("sebulba"), shutil.which("sebulba")
    if not script.exists() or (found and script.samefile(found)):
        return shlex.join(["sebulba", *words])
    here = Path.cwd()
    shortest = script.relative_to(here) if script.is_relative_to(here) else script
    return shlex.join([str(shortest), *words])


def _paragraphs(docstring: str | None) -> str:
    """The text of a docstring, without sections such as ``Attributes:``."""
    text = itertools.takewhile(
        lambda paragraph: not re.match(r"\w+:\n", paragraph),
        inspect.cleandoc(docstring or "").split("\n\n"),
    )
    # tyro would not break a long line, and joins lines that have no indent.
    return "\n\n".join(textwrap.fill(each, output.width(), subsequent_indent="  ") for each in text)


def _chosen(name: str) -> str:
    return name


def preset(words: Sequence[str], command: str, description: str | None) -> Config:
    """The preset that the ``words`` of a command begin with; ends the program as ``choose`` does.

    Raises:
      ConfigError: there is none of that name.
    """
    from sebulba import presets  # With JAX.

    if not words or words[0] in _HELP:
        choices = {name: text for name, (_, text) in presets.PRESETS.items()}
        every = "sebulba train PRESET --help lists every option, with the preset's values."
        if command != "train":
            every = f"sebulba {command} PRESET --help lists the options of {command}, and {every}"
        choose(
            choices,
            words,
            f"sebulba {command}",
            f"{inspect.cleandoc(description or '')}\n\n{every}",
        )
    if words[0].startswith("-"):
        raise ConfigError(
            f"the preset must come first, but got {words[0]!r}: sebulba {command} PRESET "
            "[options]. See: sebulba presets."
        )
    return presets.get(words[0])


@_REGISTRY.struct_rule
def _options_of(info: StructTypeInfo) -> StructConstructorSpec | None:
    """What tyro makes of a dataclass, but for the fields that ``_option`` changes."""
    # The second time, when asked from here, tyro's own rules answer.
    if not dataclasses.is_dataclass(info.type) or _options_of in info.markers:
        return None
    marked = dataclasses.replace(info, markers=(*info.markers, _options_of))
    spec = ConstructorRegistry.get_struct_spec(marked)
    if not isinstance(spec, StructConstructorSpec):
        return None
    return dataclasses.replace(spec, fields=tuple(_option(info.type, each) for each in spec.fields))


def _option(owner: type, field: StructFieldSpec) -> StructFieldSpec:
    def help_text() -> str | None:
        text = field.helptext() if callable(field.helptext) else field.helptext
        # tyro keeps the line breaks of the source.
        return text and " ".join(text.split())

    extras: list[Any] = []
    if issubclass(owner, Config) and field.name == "preset":
        extras.append(tyro.conf.Suppress)  # It comes first, and is no option.
    if field.name.endswith("_"):  # lambda_, since lambda is a word of Python.
        extras.append(tyro.conf.arg(name=field.name.rstrip("_")))
    if get_origin(field.type) is dict:  # Else tyro takes no keys but those of the default.
        extras.append(_pairs(field.default))
    kind: Any = Annotated[(field.type, *extras)] if extras else field.type
    return dataclasses.replace(field, type=kind, helptext=help_text)


def _pairs(default: Mapping[str, Option]) -> PrimitiveConstructorSpec[dict[str, Option]]:
    """Options of an environment on the command line, which are laid over those of ``default``."""

    def read(words: Sequence[str]) -> dict[str, Option]:
        if len(words) % 2:
            raise ValueError(f"got {shlex.join(words)}: each KEY must have a VALUE after it.")
        given = zip(words[::2], map(_value, words[1::2]), strict=True)
        return {**default, **dict(given)}

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY VALUE ...",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda pairs: [str(word) for pair in pairs.items() for word in pair],
    )


def _value(text: str) -> Option:
    if text in {"True", "False"}:
        return text == "True"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def file_name(text: str) -> str:
    """``text`` as a part of a file name."""
    return text.replace("/", "-").replace(":", "-")


@contextlib.contextmanager
def _width_for_tyro() -> Iterator[None]:
    """tyro takes 80 columns where there is no terminal, unless this variable is set."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(output.width())
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
