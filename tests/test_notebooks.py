"""The notebooks in examples/: they run as they are, and are committed with what they show."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from paths import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
SMALL = {"TOTAL_STEPS": "10_000", "SEEDS": "2"}
"""What the cells with parameters are given in a test."""


def names() -> list[str]:
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", names())
def test_what_it_shows_is_committed(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]
    assert not re.search("/(tmp|root|home|work)/", str([cell.outputs for cell in code]))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")  # One device, as on a laptop.
    notebook = read(name)
    (given,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    given.source = re.sub(
        r"^(\w+) = .*$", lambda line: f"{line[1]} = {SMALL[line[1]]}", given.source, flags=re.M
    )
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
