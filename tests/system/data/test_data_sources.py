"""The tests of `test_data_sources` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_reading_the_digits_imports_no_scikit_learn():
    pytest.importorskip("sklearn")
    code = (
        "import sys; from delian.core.learning import data; data.digits(); "
        "assert not {'sklearn', 'scipy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
