"""The tests of `test_oracle` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from oracle.judge import DIFFERS, judge
from oracle.planted import plant
from oracle.shrink import as_file, shrunk


def test_a_program_that_differs_is_made_small_and_is_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant("bool + bool is a bool", monkeypatch.setattr)
    text = "\n".join(
        [
            "import delian as dl",
            "def f(x, flag):",
            "    y = [x, x * 2]",
            "    for k in range(2):",
            "        y.append(flag + flag)",
            "    return y",
            "CALLS = [lambda: (1.5, True), lambda: (2.5, False)]",
            "def between():",
            "    pass",
        ]
    )
    least = shrunk(text)
    assert judge(least).mark == DIFFERS
    assert "for" not in least and "flag + flag" in least
    path = tmp_path / "least.py"
    path.write_text(as_file(least))
    shown = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("Python") and "compiled" in shown.stdout
