"""The tests of `test_torch_programs` that need a process, a socket or a clock."""

from __future__ import annotations

import sys

import numpy as np
from delian.core.compiler.ir import Builder
from native.backend_torch.test_torch_programs import I64, INDEX, ROW, agree, region


def test_the_core_does_not_import_torch() -> None:
    import subprocess

    code = (
        "import sys, delian.core.compiler.api, delian.core.compiler.backends;"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_regions_through_the_compiler_give_what_the_reference_gives() -> None:
    body = region([INDEX, ROW, ROW], lambda b, i, x, y: [b("mul", x, y), b("sub", y, x)])
    b = Builder([INDEX, ROW, ROW])
    outs = b.emit("for", [b.constant(0, I64), *b.params], {"consts": 0}, [body])
    row = np.linspace(-1, 1, 5, dtype=np.float32)
    agree(b.finish(outs), [np.int64(3), row, row + 1], "torch:cpu+compile")
