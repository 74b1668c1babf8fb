"""The example of docs/models.md."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_the_example_of_the_export_runs(tmp_path, monkeypatch):
    part = PAGE.read_text().partition("\n## Export to ONNX\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(code)
    spec = importlib.util.spec_from_file_location("delian_export_page", tmp_path / "page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the front end reads a function's source through its module
    spec.loader.exec_module(module)
    assert module.names == ["layers.0.weight", "layers.0.bias"]
    wanted = module.model(module.x, module.weight)
    np.testing.assert_allclose(module.again, wanted, rtol=1e-5, atol=1e-6)
