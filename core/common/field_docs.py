"""Attribute docstrings: the text under each field of a class, read from its source."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise


def field_docs(owner: type) -> dict[str, str]:
    """The text under each annotated field of a class, its own or inherited, as one line each.

    The source is parsed when this is called, so that importing a class costs nothing. Classes
    without source, such as built-in ones, have none.
    """
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        try:
            source = inspect.getsource(sys.modules[base.__module__])
        except (KeyError, OSError, TypeError):
            continue
        found.update(_documented(source).get(base.__qualname__, {}))
    return found


@lru_cache(maxsize=64)
def _documented(source: str) -> Mapping[str, Mapping[str, str]]:
    """The texts of a module's classes, by the classes' qualified names."""
    found: dict[str, dict[str, str]] = {}

    def visit(body: list[ast.stmt], within: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name):
                    found[within + name] = _texts(node.body)
                    visit(node.body, f"{within}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    visit(node.body, f"{within}{name}.<locals>.")
                case ast.If() | ast.Try() | ast.With():
                    visit(
                        [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)], within
                    )

    visit(ast.parse(source).body, "")
    return found


def _texts(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for key, below in pairwise(body):
        match key, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
