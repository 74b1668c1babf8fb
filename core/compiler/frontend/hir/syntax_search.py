"""`next` of a generator expression: a search, which ends where it has found an item.

`next((item for x in values if test), default)` becomes a call of

    def search(next, values, default):
        if next is not builtins.next:
            return next((item for x in values if test), default)
        for x in values:
            if test:
                return item
        return default

so that the running program may decide where it ends. Without a default it ends in StopIteration.
"""

from __future__ import annotations

import ast
import builtins
from typing import Any

#: Names of the function that no program can have.
_NEXT, _VALUES, _DEFAULT = "$next", "$values", "$default"


def search(call: ast.Call) -> tuple[ast.FunctionDef, list[ast.expr]] | None:
    """The function of a search, and the arguments of its call; None where it is none."""
    if not isinstance(call.func, ast.Name) or call.func.id != "next" or call.keywords:
        return None
    if len(call.args) not in (1, 2):
        return None
    items, *default = call.args
    if not isinstance(items, ast.GeneratorExp):
        return None
    unfit = any(isinstance(n, ast.NamedExpr | ast.Await) for n in ast.walk(items))
    unfit |= any(g.is_async for g in items.generators)
    if unfit or any(isinstance(n, ast.Starred) for n in default):
        return None
    first = items.generators[0]
    rest = ast.GeneratorExp(
        items.elt,
        [ast.comprehension(first.target, _read(_VALUES), first.ifs, 0), *items.generators[1:]],
    )
    other = ast.Call(_read(_NEXT), [rest, *(_read(_DEFAULT) for _ in default)], [])
    is_other = ast.Compare(_read(_NEXT), [ast.IsNot()], [_constant(builtins.next)])
    found = rounds(items, _VALUES, [ast.Return(items.elt)])
    if default:
        last: ast.stmt = ast.Return(_read(_DEFAULT))
    else:
        last = ast.Raise(_constant(StopIteration), None)
    named = [ast.arg(n) for n in (_NEXT, _VALUES, *(_DEFAULT for _ in default))]
    parameters = ast.arguments([], named, None, [], [], None, [])
    body = [ast.If(is_other, [ast.Return(other)], []), found, last]
    made = ast.FunctionDef("<genexpr>", parameters, body, [])
    ast.copy_location(made, items)
    for node in ast.walk(made):
        if isinstance(node, ast.expr | ast.stmt | ast.arg) and not hasattr(node, "lineno"):
            ast.copy_location(node, items)
    return made, [call.func, first.iter, *default]


def rounds(items: ast.GeneratorExp | ast.ListComp, values: str, body: list[ast.stmt]) -> ast.stmt:
    """The loops of a comprehension around a body; the first goes through a name's value."""
    for generator in reversed(items.generators):
        for condition in reversed(generator.ifs):
            body = [ast.copy_location(ast.If(condition, body, []), items)]
        source = generator.iter
        if generator is items.generators[0]:
            source = ast.copy_location(_read(values), source)
        body = [ast.copy_location(ast.For(generator.target, source, body, []), items)]
    return body[0]


def _read(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _constant(value: Any) -> ast.Constant:
    return ast.Constant(value)


__all__ = ["rounds", "search"]
