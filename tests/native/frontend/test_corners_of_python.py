"""Corners of Python's semantics: small modules, each of which was once a silent difference.

`corners_of_python.txt` has them. A line `= words` begins a module whose compiled function `f` gives
what Python gives in three calls; `! code` one that is refused.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from oracle import judge
from oracle.program import HEAD

_TEXT = Path(__file__).with_name("corners_of_python.txt").read_text()
#: What a parameter of `f` is in each of the three calls.
_VALUES = {
    "x": ("1.5", "-2.25", "0.0"),
    "y": ("2.0", "3.5", "-1.0"),
    "n": ("3", "0", "5"),
    "t": ("(1.0, 2)", "(2.5, 0)", "(-1.0, 7)"),
    "v": ("np.array([1.0, 2.0, 3.0])", "np.array([-1.0, 0.5, 2.0])", "np.zeros(3)"),
}


def modules() -> list[tuple[str, str]]:
    """(mark, module) of each."""
    parts = re.split(r"^([=!] .*)\n", _TEXT, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def program(module: str) -> str:
    """The module as a program of the oracle."""
    found = re.search(r"^def f\((.*)\):", module, re.MULTILINE)
    assert found is not None, module
    columns = [_VALUES[name] for name in found[1].split(", ") if name]
    calls = "".join(f"    lambda: ({', '.join(row)},),\n" for row in zip(*columns, strict=True))
    between = "" if "def between" in module else "def between():\n    pass\n"
    return f"{HEAD}\n{module}\nCALLS = [\n{calls}]\n{between}"


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize(("mark", "module"), modules(), ids=[mark for mark, _ in modules()])
def test_module(mark: str, module: str, backend: str) -> None:
    verdict = judge.judge(program(module), backend)
    want = judge.EQUAL if mark.startswith("=") else judge.REFUSED
    assert verdict.mark == want, verdict.words
    assert (
        want == judge.EQUAL or mark == f"! {verdict.code}" or mark.startswith(f"! {verdict.code} ")
    )
