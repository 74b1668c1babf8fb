"""The example of docs/models.md."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_the_example_of_onnx_runs(tmp_path):
    part = PAGE.read_text().partition("\n## ONNX\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    (tmp_path / "page.py").write_text(code)
    spec = importlib.util.spec_from_file_location("delian_models_page", tmp_path / "page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the front end reads a function's source through its module
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.y, np.full((4, 2), np.tanh(3)), rtol=1e-5)
    assert module.slope.shape == (3, 2)
