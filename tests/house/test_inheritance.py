"""No inheritance deeper than one, and no method that only asserts."""

from __future__ import annotations

import ast
from pathlib import Path

import delian

ROOT = Path(delian.__file__).parent
FOLDERS = ("core", "device", "edge", "cloud")
#: What is no inheritance of behaviour.
MARKS = {"ABC", "Generic", "NamedTuple", "Protocol", "TypedDict", "object"}
#: Bases from which a second step is allowed, and why.
DEEP = {
    "Base": "SQLAlchemy's declarative base",
    "FedPer": "a published variant of an algorithm",
    "Maml": "published variants of an algorithm",
    "Query": "an analytics query is an algorithm",
}


def trees():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.stem.endswith("_pb2"):
                yield path.relative_to(ROOT), ast.parse(path.read_text())


def bases_of(node):
    names = (ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
    return [name for name in names if name not in MARKS]


def too_deep(classes):
    """The classes that have a grandparent of this package; exceptions and enums aside."""

    def is_exempt(name):
        is_kind = name.endswith(("Error", "Exception", "Enum", "Warning"))
        return is_kind or any(is_exempt(base) for base in classes.get(name, ()))

    return sorted(
        name
        for name, bases in classes.items()
        if not is_exempt(name)
        for base in bases
        if base not in DEEP and any(up in classes for up in classes.get(base, ()))
    )


def only_asserts(node):
    """Whether a function does nothing but raise AssertionError."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (
        len(body) == 1
        and isinstance(body[0], ast.Raise)
        and body[0].exc is not None
        and ast.unparse(body[0].exc).startswith("AssertionError")
    )


def test_no_inheritance_is_deeper_than_one():
    classes = {}
    for _path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).extend(bases_of(node))
    assert not too_deep(classes)
    assert set(classes) >= set(DEEP), "each exception is still needed"


def test_no_method_only_asserts():
    found = [
        f"{path}: {node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and only_asserts(node)
    ]
    assert not found


def test_a_chain_of_three_and_a_stub_are_found():
    assert too_deep({"A": ["B"], "B": ["C"], "C": []}) == ["A"]
    assert too_deep({"AError": ["BError"], "BError": ["CError"], "CError": []}) == []
    stub = ast.parse('def wanted(self):\n    """Doc."""\n    raise AssertionError("no")').body[0]
    assert only_asserts(stub)
