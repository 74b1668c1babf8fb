"""The tests of `test_lazily` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_module_is_loaded_with_the_first_name_that_needs_it():
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
