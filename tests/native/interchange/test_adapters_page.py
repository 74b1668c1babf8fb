"""The example of adapters in docs/models.md."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def test_the_example_trains_and_comes_back(tmp_path, monkeypatch):
    section = PAGE.read_text().split("## Adapters\n", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(code)
    spec = importlib.util.spec_from_file_location("delian_adapters_page", tmp_path / "page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the front end reads a function's source through its module
    spec.loader.exec_module(module)
    assert 1.0 < module.value < 2.5  # four labels
    np.testing.assert_array_equal(module.again(module.ids), module.model(module.ids))
    np.testing.assert_allclose(module.plain(module.ids), module.model(module.ids), atol=1e-5)
    assert np.abs(module.base(module.ids) - module.model(module.ids)).max() > 1e-4
