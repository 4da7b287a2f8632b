"""The parts of pages that are written when the site is built, from the code and the results."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from sphinx.pycode import ModuleAnalyzer

from sebulba import presets
from sebulba.cli.main import COMMANDS
from sebulba.config import Config, flat
from sebulba.remote.settings import Listen
from sebulba.validation import Rule

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


# Fields of dataclasses.


def configuration() -> str:
    """Every field of every config, those that all algorithms share first."""
    shared = flat(dataclasses.asdict(Config()))
    groups: dict[str, list[str]] = {}
    for path in shared:
        groups.setdefault(path.rpartition(".")[0], []).append(path)
    parts = []
    for group, paths in groups.items():
        title = f"The group `{group}`" if group else "All algorithms"
        parts += [f"## {title}", about(_holder(Config(), paths[0]))]
        parts += [field(Config(), path) for path in paths]
    for kind in algorithms():
        own = flat(dataclasses.asdict(kind()))
        changed = [path for path in own if path not in shared or own[path] != shared[path]]
        parts += [f"## {kind.__name__}", about(kind), *(field(kind(), path) for path in changed)]
    parts += ["## Remote lanes", about(Listen)]
    return "\n\n".join([*parts, *(field(Listen(), name) for name in _names(Listen))])


def algorithms() -> list[type[Config]]:
    """The config classes of the library's algorithms."""
    return list(dict.fromkeys(type(config) for config, _ in presets.PRESETS.values()))


def about(described: Any) -> str:
    """The text of a docstring, as Markdown."""
    return plain(inspect.getdoc(described) or "")


def field(config: Any, path: str) -> str:
    """One field: its name, what it takes, its default and what it is for."""
    holder, name = _holder(config, path), path.rpartition(".")[2]
    hint = get_type_hints(type(holder), include_extras=True)[name]
    anchor = f"{type(config).__name__}-{path}".replace(".", "-")
    term = f"[`{path}`]{{#{anchor}}} · {takes(hint)} · default `{getattr(holder, name)!r}`"
    return entry(term, help_of(type(holder), name))


def entry(term: str, text: str) -> str:
    return f"{term}\n: {plain(text)}"


def takes(hint: Any) -> str:
    """What values a type allows, in words."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        rules = [extra.says for extra in extras if isinstance(extra, Rule)]
        return plain(re.sub(r"^must (all )?be ", "", rules[0])) if rules else takes(inner)
    if get_origin(hint) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("None" if each is type(None) else takes(each) for each in get_args(hint))
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}
    return words.get(hint) or {Path: "a path", dict: "names and values"}.get(
        get_origin(hint) or hint, "several"
    )


def help_of(kind: type, name: str) -> str:
    """The docstring of a field, of the class that said it last."""
    texts = (_docstrings(owner.__module__).get((owner.__name__, name)) for owner in kind.__mro__)
    return " ".join(next(filter(None, texts))).strip()


def plain(text: str) -> str:
    """Docstring text as Markdown: options and fields are code, and nothing else is markup."""
    # In turns: text, a code in backticks or None, and a name or None.
    parts = re.split(r"`{2}(.*?)`{2}|(?<!\S)(--[a-z][\w.-]*\w|[a-z]+(?:_[a-z]+)+(?![\w:(]))", text)
    codes = [first or second for first, second in zip(parts[1::3], parts[2::3], strict=True)]
    texts = [re.sub(r"([*_<>$\[\]|~])", r"\\\1", each) for each in parts[::3]]
    return texts[0] + "".join(
        f"`{code}`{rest}" for code, rest in zip(codes, texts[1:], strict=True)
    )


@cache
def _docstrings(module: str) -> dict[tuple[str, str], list[str]]:
    return ModuleAnalyzer.for_module(module).find_attr_docs() if module != "builtins" else {}


def _holder(config: Any, path: str) -> Any:
    """The config, or the group in it, that has the last name of a dotted ``path``."""
    for name in path.split(".")[:-1]:
        config = getattr(config, name)
    return config


def _names(kind: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(kind)]


# The command line.


def command(name: str) -> str:
    """What a command does, and its options."""
    run = COMMANDS[name]
    return "\n\n".join([about(run), *_options(name, sys.modules[run.__module__].Options)])


def _options(name: str, kind: Any) -> Iterator[str]:
    hints = get_type_hints(kind, include_extras=True)
    for each in dataclasses.fields(kind):
        hint, *marks = get_args(hints[each.name]) if _is_marked(hints[each.name]) else [None]
        inner = hint or hints[each.name]
        if isinstance(inner, type) and issubclass(inner, Config):
            yield "And every field of the preset's config: see [Configuration](configuration.md)."
        elif inner is Listen:
            yield "And those of [remote lanes](configuration.md)."
        elif dataclasses.is_dataclass(inner):
            yield from _options(name, inner)
        else:
            yield entry(_term(name, each, hints[each.name], marks), help_of(kind, each.name))


def _is_marked(hint: Any) -> bool:
    return get_origin(hint) is Annotated


def _term(command: str, each: dataclasses.Field[Any], hint: Any, marks: list[Any]) -> str:
    metavar = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)
    option = f"--{each.name.replace('_', '-')}"
    shown = metavar if tyro.conf.Positional in marks else option
    what = "" if shown == metavar else f" · {f'`{metavar}`' if metavar else takes(hint)}"
    default: Any = each.default
    if each.default_factory is not dataclasses.MISSING:
        default = each.default_factory()
    end = "" if default is dataclasses.MISSING else f" · default `{_shown(default)}`"
    return f"[`{shown}`]{{#{command}-{each.name}}}{what}{end}"


def _shown(default: Any) -> str:
    return str(default) if isinstance(default, Path) else repr(default)


# Presets.


def preset_list() -> str:
    """Every preset by its algorithm: what it is for, and what it sets."""
    parts = []
    for kind in algorithms():
        parts.append(f"## {kind.__name__.removesuffix('Config')}")
        default = flat(dataclasses.asdict(kind()))
        for name, (config, text) in presets.PRESETS.items():
            if type(config) is not kind:
                continue
            own = flat(dataclasses.asdict(config))
            changed = [path for path in own if own[path] != default[path]]
            shown = ", ".join(f"`{path}={own[path]!r}`" for path in changed if path != "preset")
            parts.append(f"{entry(f'[`{name}`]{{#{name}}}', text)}\n\n  Sets {shown}.")
    return "\n\n".join(parts)


# Results.

SAY_NOT = {
    "environments": "python benchmarks/environments.py",
    "hosts": "python benchmarks/hosts.py --hosts 1 2 4 8 16 32",
    "memory": "python benchmarks/memory.py vtrace-catch r2d2-catch --minutes 31 "
    "-- --evaluation.interval 300000 --evaluation.episodes 20",
    "replay": "python benchmarks/replay.py",
    "replay_soak": "python benchmarks/replay.py --soak 600",
    "scaling": "python benchmarks/scaling.py --devices 1 2 3 --processes 1 2",
    "soak": "python benchmarks/soak.py",
    "vector_envs": "python benchmarks/vector_envs.py --repeats 5 --seconds 4",
}
"""Commands of the results that do not hold their own."""


def results() -> str:
    """A row for each committed result, with the command that makes it."""
    rows = ["| result | made by |", "| --- | --- |"]
    for name, files in _result_files().items():
        links = " ".join(f"[{kind}](../{path.relative_to(ROOT)})" for kind, path in files.items())
        made_by = "<br>".join(f"`{each}`" for each in _made_by(name))
        rows.append(f"| **{name}**<br>{links} | {made_by} |")
    return "\n".join(rows)


def _result_files() -> dict[str, dict[str, Path]]:
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(RESULTS.iterdir()):
        each = path / "README.md" if path.is_dir() else path
        kind = {".md": "table", ".json": "raw", ".png": "plot"}[each.suffix]
        found.setdefault(path.stem, {})["page" if path.is_dir() else kind] = each
    return found


def _made_by(name: str) -> list[str]:
    if (RESULTS / name).is_dir():
        block = re.search(
            r"(?:^    .*\n)+", (RESULTS / name / "README.md").read_text(), re.MULTILINE
        )
        lines = re.sub(r" \\\n +", " ", block[0]) if block else ""
        return [line.strip() for line in lines.splitlines() if not line.strip().startswith("(")]
    raw = json.loads((RESULTS / f"{name}.json").read_text())
    said = raw.get("command") if isinstance(raw, dict) else None
    if name.startswith("seeds_"):  # Of the training: the script gives it the seeds.
        preset, *options = shlex.split(said)[2:]
        seeds = [str(each["seed"]) for each in raw["seeds"]]
        words = [preset, "--seeds", *seeds, *(["--", *options] if options else [])]
        return [shlex.join(["python", "benchmarks/seeds.py", *words])]
    if isinstance(said, list):
        said = shlex.join(["python", *said])
    return [said or SAY_NOT[name]]


PARTS: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "presets": preset_list,
    "results": results,
    **{f"command {name}": partial(command, name) for name in COMMANDS},
}
"""What stands in a page as <!-- generated: NAME -->, and the function that writes it."""
