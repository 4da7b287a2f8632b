"""Links in the Markdown pages lead to files and headings that are there.

The site's own test follows all of its links, but takes long and has no README.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from paths import ROOT

PAGES = sorted(
    path.relative_to(ROOT)
    for folder in (".", "docs", "examples", "benchmarks/**")
    for path in ROOT.glob(f"{folder}/*.md")
)


def tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or ()


def links(text: str) -> Iterator[str]:
    """The targets of links and images."""
    for token in tokens(text):
        target = token.attrGet({"link_open": "href", "image": "src"}.get(token.type, ""))
        if target is not None:
            yield str(target)


def anchors(text: str) -> set[str]:
    """Names of the headings, as GitHub and the site make them."""
    parsed = list(tokens(text))
    titles = [
        title.content
        for heading, title in itertools.pairwise(parsed)
        if heading.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def fault(page: Path, link: str) -> str | None:
    """Why a link leads nowhere; on the site, one to a folder does too."""
    target = urlsplit(link)
    if target.scheme:
        return None if target.scheme == "https" else f"{link} is not https"
    file = page.parent / unquote(target.path) if target.path else page
    if not file.is_file():
        return f"{link} is not a file"
    if target.fragment and unquote(target.fragment) not in anchors(file.read_text()):
        return f"{link} has no such heading"
    return None


def test_faults_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three\n\n[a](page.md#one-two-three) [b](gone.md) `[c](code)`\n\n"
        "| d |\n| --- |\n| ![d](.) [e](#four) |\n\n[f](http://x.org)\n\n"
        "```\n# Four\n```\n"
    )
    found = [fault(page, link) for link in links(page.read_text())]
    assert found == [
        None,
        "gone.md is not a file",
        ". is not a file",
        "#four has no such heading",
        "http://x.org is not https",
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text()
    assert [each for link in links(text) if (each := fault(ROOT / page, link))] == []
