"""docs/notebooks: each runs from its first cell to its last, in a kernel of its own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
CELL_S = 1200


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    for needed in ("ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(needed)
    text = path.read_text()
    if "import torch" in text and importlib.util.find_spec("torch") is None:
        pytest.skip("the notebook uses PyTorch, which is not installed")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=CELL_S, kernel_name="python3", resources=resources
    ).execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(ran) >= 3 and all(cell.execution_count for cell in ran)
    assert json.loads(text)["cells"], "the file itself is as it was"
