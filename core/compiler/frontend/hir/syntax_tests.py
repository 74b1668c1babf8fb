"""Tests that bind names where they may not be come to: `if a and (x := b)`.

Each operand of such an `and` or `or` becomes an `if` of its own, so that the path on which all of
them hold, or none, has the names. What stands on the other path is there twice, so the test stays
one where that path is long: chains of `elif` would double with each.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ....common.errors import Loc
from . import hir


def branch(loc: Loc, test: hir.Expr, then: hir.Block, otherwise: hir.Block) -> hir.If:
    """`if test: then`, `else: otherwise`."""
    op, first, rest = _split(test)
    if rest is None or _is_long(otherwise if op == "and" else then):
        return hir.If(loc, test, then, otherwise)
    inner = (branch(loc, rest, then, otherwise),)
    return hir.If(loc, first, inner, otherwise) if op == "and" else hir.If(loc, first, then, inner)


def conditional(loc: Loc, test: hir.Expr, then: hir.Expr, otherwise: hir.Expr) -> hir.Expr:
    """`then if test else otherwise`."""
    op, first, rest = _split(test)
    if rest is None or _is_long(otherwise if op == "and" else then):
        return hir.Conditional(loc, test, then, otherwise)
    inner = conditional(loc, rest, then, otherwise)
    paths = (inner, otherwise) if op == "and" else (then, inner)
    return hir.Conditional(loc, first, *paths)


def conditions(given: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The conditions of a comprehension."""
    for test in given:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            yield from test.values
        else:
            yield test


def _split(test: hir.Expr) -> tuple[str, hir.Expr, hir.Expr | None]:
    """The operator of a test whose later operands bind names, its first operand, the others."""
    if not isinstance(test, hir.Boolean) or not _binds(test.operands[1:]):
        return "", test, None
    first, *others = test.operands
    rest = others[0] if len(others) == 1 else replace(test, operands=tuple(others))
    return test.op, first, rest


#: Nodes of a path that is there twice.
_TWICE_MAX = 200


def _is_long(path: hir.Block | hir.Expr) -> bool:
    left: list[Any] = [path]
    found = 0
    while left and found <= _TWICE_MAX:
        node = left.pop()
        if isinstance(node, tuple):
            left += node
        elif is_dataclass(node):
            found += 1
            left += [getattr(node, f.name) for f in fields(node) if f.name != "loc"]
    return found > _TWICE_MAX


def _binds(node: Any) -> bool:
    if isinstance(node, tuple):
        return any(map(_binds, node))
    if isinstance(node, hir.Named):
        return True
    return is_dataclass(node) and any(_binds(getattr(node, f.name)) for f in fields(node))
