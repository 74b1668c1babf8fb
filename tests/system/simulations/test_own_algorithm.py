"""The tests of `test_own_algorithm` that need a process, a socket or a clock."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


ROOT = Path(__file__).parents[3]


def test_the_example_is_twenty_lines_and_runs_outside_the_checkout(tmp_path):
    text = (EXAMPLES / "own_algorithm.py").read_text()
    (tmp_path / "mine.py").write_text(text)
    toml = (EXAMPLES / "own_algorithm.toml").read_text().replace("own_algorithm.py", "mine.py")
    (tmp_path / "mine.toml").write_text(toml)
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert [node.end_lineno - node.lineno < 20 for node in classes] == [True]
    arguments = ["simulate", "-s", "mine.toml", "--set", "rounds=1", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "delian.cli", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ClippedAvg" in done.stdout + done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
