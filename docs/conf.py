"""Sphinx builds the documentation with this: ./run docs

The source is the whole repository and not this folder alone, so that a link from one page to
another, to a result or to an example is the same here, on the site and in a clone.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import ziamath
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import generated  # noqa: E402, in this folder

from sebulba.version import __version__  # noqa: E402

project = "sebulba"
author = "The sebulba authors"
copyright = author
version = release = __version__

root_doc = "docs/index"
include_patterns = [
    *("docs/**", "benchmarks/**", "examples/README.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
]
exclude_patterns = [".*", "build", "dist", "sebulba", "tests", "runs"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
highlight_language = "bash"
# It would make one dash of the two that an option begins with.
smartquotes = False

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "sebulba"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]
templates_path = ["_templates"]
html_sidebars = {"**": ["contents.html"]}
html_copy_source = html_show_sourcelink = False
html_math_renderer = "svg"
html_theme_options: dict[str, Any] = {
    "navbar_center": [],
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "article_header_start": [],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
}


ziamath.config.svg2 = False  # No ids, which would be those of other equations too.
ziamath.config.precision = 2


def drawn(latex: str, inline: bool) -> str:
    """As shapes: any browser draws them in the color of the text, without a script or a font."""
    made = ziamath.Latex(" ".join(latex.split()), size=17, color="currentColor", inline=inline)
    svg = made.svgxml()
    svg.set("style", f"vertical-align: {made.getyofst():.2f}px")
    svg.set("role", "img")
    svg.set("aria-label", latex)
    return ET.tostring(svg, encoding="unicode")


def inline_math(self: Any, node: nodes.math) -> None:
    self.body.append(drawn(node.astext(), inline=True))
    raise nodes.SkipNode


def displayed_math(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="equation">{drawn(node.astext(), inline=False)}</div>')
    raise nodes.SkipNode


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what is generated where a page says so, in a comment; tables alone become pages."""
    if source[0].startswith("|"):
        source[0] = f"# {docname.rpartition('/')[2]}\n\n{source[0]}"
    for name, write in generated.PARTS.items():
        place = f"<!-- generated: {name} -->"
        if place in source[0]:
            source[0] = source[0].replace(place, write())
    if "<!-- generated:" in source[0]:
        raise ExtensionError(f"{docname} has a part that docs/generated.py does not know")


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("svg", (inline_math, None), (displayed_math, None))
    app.connect("source-read", fill)
