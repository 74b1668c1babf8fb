"""`.ci/system`: what fails is tried once more, and its report says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAKY = """
@pytest.mark.system
def test_{name}():
    seen = pathlib.Path(__file__).with_name("{name}.seen")
    if not seen.exists():
        seen.touch()
        raise RuntimeError("the first failure of {name}")
"""
WRONG = "@pytest.mark.system\ndef test_wrong():\n    assert 1 == 2\n"
GOOD = "@pytest.mark.system\ndef test_good():\n    pass\n"


@pytest.fixture
def system_run(checkout: Path, tmp_path: Path):
    """Runs the script over tests with that text."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    system: x\n")

    def run(*tests: str) -> tuple[int, str]:
        text = "import pathlib\nimport pytest\n" + "\n".join([GOOD, *tests])
        (tmp_path / "test_it.py").write_text(text)
        kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
        done = subprocess.run(
            [checkout / ".ci" / "system", "."],
            cwd=tmp_path,
            env={**kept, "BIN": str(Path(sys.executable).parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout

    return run


def test_a_test_that_passes_alone_is_reported_as_flaky_with_its_failure(system_run):
    status, said = system_run(FLAKY.format(name="once"))
    assert status == 0, said
    assert "the first failure of once" in said
    assert "1 FLAKY, of at most 5" in said and "FLAKY test_it.py::test_once" in said


def test_a_test_that_fails_again_fails_the_run(system_run):
    status, said = system_run(FLAKY.format(name="once"), WRONG)
    assert status == 1 and "FLAKY" not in said


def test_more_failures_than_five_fail_the_run(system_run):
    status, said = system_run(*(FLAKY.format(name=f"once_{n}") for n in range(6)))
    assert status == 1 and "6 failures are too many" in said and "FLAKY" not in said


def test_a_slow_test_is_left_to_the_other_script(system_run):
    status, said = system_run("@pytest.mark.slow\n" + WRONG)
    assert status == 0 and "1 passed" in said, said


def test_a_file_that_cannot_be_imported_fails_the_run(system_run):
    status, said = system_run("import nothing_of_this_name")
    # Under xdist, pytest answers with 1 or 2; a second try finds the same.
    assert status != 0 and "FLAKY" not in said
