"""Pages that are made from the code: what the comparison with the committed pages cannot show."""

from __future__ import annotations

import importlib.util
import re
import sys

import numpy as np
from delian.core.compiler.frontend.vocabulary import vocabulary_numpy
from support.pages import nn_page, protocol_page


def test_a_diagram_shows_each_change_of_phase_once():
    lines = protocol_page.diagram(protocol_page.device.TABLE).splitlines()
    assert '    state "checking in" as checking_in' in lines
    why = "started, time to come back, its owner agrees, or does no more"
    assert f"    idle --> checking_in: {why}" in lines
    assert len(lines) == len(set(lines))


def test_every_layer_has_a_description():
    rows = re.findall(r"^\| (`[a-z.]+\.\w.*`) \| (.*) \|$", nn_page.page(), re.MULTILINE)
    assert len(rows) > 120
    assert [name for name, text in rows if len(text) < 10] == []


def test_the_example_of_the_layers_trains(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", nn_page.page(), re.DOTALL | re.MULTILINE)
    # The reference back end computes the same without a C compiler, and starts sooner.
    code = code.replace("@dl.compile\n", '@dl.compile(backend="reference")\n')
    (tmp_path / "page.py").write_text(code)
    spec = importlib.util.spec_from_file_location("delian_nn_page", tmp_path / "page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the front end reads a function's source through its module
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.value, np.log(10), rtol=1e-5)


def test_notes_of_the_vocabulary_are_about_its_functions():
    assert set(vocabulary_numpy.NOTES) <= {row.name for row in vocabulary_numpy.rows()}
