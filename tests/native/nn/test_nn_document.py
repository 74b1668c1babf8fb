"""docs/nn.md is what the code says, and its example runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
from delian.core.learning.nn import nn_document

PAGE = Path(__file__).resolve().parents[3] / "docs" / "nn.md"


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == nn_document.page()


def test_every_entry_says_something():
    rows = re.findall(r"^\| (`[a-z.]+\.\w.*`) \| (.*) \|$", nn_document.page(), re.MULTILINE)
    assert len(rows) > 120
    assert [name for name, text in rows if len(text) < 10] == []


def test_the_example_trains(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", nn_document.page(), re.DOTALL | re.MULTILINE)
    # Without C's compiler it is as right and sooner there.
    code = code.replace("@dl.compile\n", '@dl.compile(backend="reference")\n')
    (tmp_path / "page.py").write_text(code)
    spec = importlib.util.spec_from_file_location("delian_nn_page", tmp_path / "page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.value, np.log(10), rtol=1e-5)
