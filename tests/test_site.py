"""The documentation as a site: built without a warning, complete, and standing alone."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import zlib
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from docutils.nodes import make_id
from paths import ROOT

import sebulba
from sebulba import presets
from sebulba.cli.main import COMMANDS
from sebulba.config import flat

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What a page has and asks for.

    Attributes:
      ids: which a link can lead to.
      links: targets of links, and of what the page is drawn with, by their tags.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: dict[str, set[str]] = defaultdict(set)
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and addresses."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.links[tag].add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by ``./run docs``, where no other host can be reached."""
    out = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    result = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", out],
        cwd=ROOT,
        env=os.environ | {"http_proxy": nowhere, "https_proxy": nowhere},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0 and not result.stderr, result.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_links_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    outside = set()
    for path, page in pages.items():
        for link in set().union(*page.links.values()):
            target = urlsplit(link)
            if target.scheme:
                outside.add(link)
                continue
            file = path.parent / unquote(target.path) if target.path else path
            assert file.is_file(), (path, link)
            if target.fragment and file.resolve() in pages:
                assert unquote(target.fragment) in pages[file.resolve()].ids, (path, link)
    assert len(pages) > 50 and len(outside) > 10
    assert {urlsplit(link).scheme for link in outside} == {"https"}


def test_it_is_drawn_without_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for tag in page.links.keys() - {"a"}:
            assert not {link for link in page.links[tag] if urlsplit(link).netloc}, (path, tag)
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text()), path
    # Equations are drawn: nothing of them is left as text.
    text = (site / "docs" / "algorithms.html").read_text()
    assert text.count("<svg ") > 50 and r"\frac" not in re.sub(r"<svg [^>]*>", "", text)
    # On a phone too, where a page of 390 pixels has so many for an equation.
    widths = re.findall(r'class="equation"><svg [^>]*\bwidth="([\d.]+)', text)
    assert len(widths) > 20 and max(map(float, widths)) <= 320


def test_all_public_names_are_there(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    there = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for name in sebulba.__all__:
        value = getattr(sebulba, name)
        if not isinstance(value, ModuleType):
            assert f"sebulba.{name}" in there
            continue
        assert value.__name__ in there
        # Some are public in both places, and Logs and Explore are mere names of other types.
        inner = {f"{value.__name__}.{each}" for each in getattr(value, "__all__", ())}
        missing = {each.rpartition(".")[2] for each in inner - there}
        assert missing <= {*sebulba.__all__, "Logs", "Explore", "TRAJECTORY_AXES"}


def test_all_options_presets_and_results_are_there(site: Path, pages: dict[Path, Page]) -> None:
    def ids(name: str) -> set[str]:
        return pages[site / "docs" / f"{name}.html"].ids

    algorithms = {type(config) for config, _ in presets.PRESETS.values()}
    shared = flat(dataclasses.asdict(sebulba.Config())).keys()
    for kind in {sebulba.Config, sebulba.Listen, *algorithms}:
        own = flat(dataclasses.asdict(kind())).keys() - (shared if kind in algorithms else ())
        assert {make_id(f"{kind.__name__}-{path}") for path in own} <= ids("configuration")
    assert set(presets.PRESETS) <= ids("presets")
    assert COMMANDS.keys() <= ids("commands")
    shown = (site / "docs" / "results.html").read_text()
    for path in (ROOT / "benchmarks" / "results").iterdir():
        assert f"<strong>{path.stem}</strong>" in shown
