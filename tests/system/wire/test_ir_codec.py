"""The tests of `test_ir_codec` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from delian.core.compiler.ir_codec import (
    content_hash,
)
from delian.core.compiler.text import parse_function

GOLDEN = Path(__file__).parents[2] / "golden"


def example():
    return parse_function((GOLDEN / "program.txt").read_text())


def test_the_bytes_do_not_depend_on_the_process():
    """Nothing in them comes from the order of a set or a hash."""
    code = (
        "import sys; from delian.core.compiler.text import parse_function;"
        "from delian.core.compiler.ir_codec import content_hash;"
        "print(content_hash(parse_function(sys.stdin.read())))"
    )
    text = (GOLDEN / "program.txt").read_text()
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=text,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {content_hash(example())}
