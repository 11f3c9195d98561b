"""The notebook runs from the first cell to the last, in a kernel of Jupyter, with fewer steps."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs/tutorials/first-run.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_holds_no_outputs_so_that_none_is_stale(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_the_notebook_runs_and_shows_a_curve_and_predictions(notebook, tmp_path):
    for cell in notebook.cells:
        cell.source = cell.source.replace("STEPS = 400", "STEPS = 1")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2, "the curve, and the digit"
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert printed.count("selector: last") == 2
    assert (tmp_path / "runs/first/far/last.ckpt").is_file()
