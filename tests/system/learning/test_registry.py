"""The tests of `test_registry` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys


def test_names_are_listed_without_importing_an_algorithm():
    code = """
import sys
from delian.core.learning import algorithm_registry as registry
assert "scaffold" in registry.names()
assert not any(m.startswith("delian.core.learning.algorithms.") for m in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
