"""The tests of `test_torch_programs` that need a process, a socket or a clock."""

from __future__ import annotations

import sys


def test_the_core_does_not_import_torch() -> None:
    import subprocess

    code = (
        "import sys, delian.core.compiler.api, delian.core.compiler.backends;"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
