"""Names of a package that are loaded when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from delian.core import learning
from delian.core.learning import nn

CHECK = """
import sys
from delian.core.learning.aggregate import robust
unused = ("delian.core.learning.nn.", "delian.core.learning.algorithms.")
assert not any(m.startswith(unused) for m in sys.modules)
from delian.core import learning as learn
assert learn.FedAvg.__name__ == "FedAvg" and "FedAvg" in vars(learn)
assert "delian.core.learning.algorithms.scaffold" not in sys.modules
assert learn.Scaffold.__module__ in sys.modules
"""


@pytest.mark.parametrize("package", [learning, nn])
def test_every_public_name_is_there_and_told(package):
    told = dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in told
        assert vars(package)[name] is getattr(package, name), "asked for once"


@pytest.mark.parametrize("package", [learning, nn])
def test_a_name_that_is_not_there_is_refused_as_any_module_would(package):
    with pytest.raises(AttributeError, match=f"'{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


def test_a_module_is_loaded_with_the_first_name_that_needs_it():
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
