"""Where D103 is off in the frontend, a function without a docstring is named for one of NumPy.

It means that function, so NumPy's documentation is its own. Any other function has a docstring.
"""

from __future__ import annotations

import ast
import math
import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Where the names are looked for; methods of arrays are among them.
NAMESPACES = (np, np.linalg, np.fft, np.ndarray, math)


def alternatives(pattern: str) -> list[str]:
    """A pattern once for each choice of its braces: a{b,c} is ab and ac."""
    parts = [part.split(",") for part in pattern.replace("}", "{").split("{")]
    return ["".join(choice) for choice in product(*parts)]


def undocumented() -> list[str]:
    """The files of the frontend in which D103 is off."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ignored = settings["tool"]["ruff"]["lint"]["per-file-ignores"]
    return sorted(
        path.relative_to(ROOT).as_posix()
        for pattern, rules in ignored.items()
        if "D103" in rules and "frontend" in pattern
        for one in alternatives(pattern)
        for path in ROOT.glob(one)
    )


def nameless(text: str) -> list[str]:
    """Public functions of a module without a docstring that NumPy has no function for.

    A name of Python's built-ins may end in an underscore: sum_ is np.sum.
    """
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
        and not any(
            hasattr(space, name)
            for space in NAMESPACES
            for name in (node.name, node.name.removesuffix("_"))
        )
    ]


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.2.0", reason="some names are new in NumPy 2.2"
)
@pytest.mark.parametrize("path", undocumented())
def test_functions_without_a_docstring_are_named_for_those_of_numpy(path):
    found = nameless((ROOT / path).read_text(encoding="utf-8"))
    assert not found, f"write a docstring: {', '.join(found)}"


def test_a_function_of_another_name_is_found():
    text = (
        'def sum_(a): ...\ndef svd(a): ...\ndef widened(a): ...\ndef other(a):\n    """Text."""\n'
    )
    assert nameless(text) == ["widened"]
    assert alternatives("a/{b,c}/*.py") == ["a/b/*.py", "a/c/*.py"]
