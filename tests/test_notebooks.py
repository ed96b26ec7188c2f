"""Every notebook runs from top to bottom in a fresh kernel."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the notebook libraries' own imports
    import nbclient
    import nbformat

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 50_000  # bytes of a committed notebook: text, no images


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(FOLDER.parent)})
    errors = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]
    assert errors == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_small(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    outputs = [cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells]
    assert not any(outputs), "clear the outputs before committing"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
