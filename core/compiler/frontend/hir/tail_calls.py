"""A function that ends in a call of itself is a loop (HIR -> HIR, before `escapes`).

    def f(n, y):                          while True:
        if n == 0: return y                   if n == 0: return y
        return f(n - 1, y * n)     ->         (n, y) = (n - 1, y * n)
                                              continue

A call that is known to end is inlined, whatever its shape; the loop is for one whose end only the
running program knows (`calls`).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from ....common.errors import Loc
from . import hir


def as_loop(block: hir.Block, name: str, parameters: hir.Parameters, end: Loc) -> hir.Block | None:
    """The body of a function called `name` as a loop; None when it ends in no call of itself."""
    if parameters.rest is not None or parameters.keywords is not None:
        return None
    rewriting = _Rewriting(name, parameters)
    body = rewriting.block(block)
    if not rewriting.found:
        return None
    round_ = (*_counted(end), *body, hir.Escape(end, "return", None))
    start = hir.Assign(end, (hir.Name(end, _CALLS),), hir.Constant(end, 0))
    return (start, hir.While(end, hir.Constant(end, True), round_, None))


#: Python's own limit, while the compiler has set a higher one for itself.
recursion_limits: list[int] = []
#: Counts the calls.
_CALLS = "$calls"


def _counted(loc: Loc) -> hir.Block:
    """A call, with a limit on how many there are.

    So many of them as Python never has on its stack are its error, else a recursion that ends in
    Python could be a loop without an end.
    """
    count = hir.Name(loc, _CALLS)
    words = hir.Constant(loc, "maximum recursion depth exceeded")
    limit = hir.Constant(loc, next(iter(recursion_limits), sys.getrecursionlimit()))
    few = hir.Compare(loc, ("<",), (count, limit))
    more = hir.Binary(loc, "+", count, hir.Constant(loc, 1))
    return (
        hir.Assert(loc, few, words, RecursionError),
        hir.Assign(loc, (count,), more),
    )


class _Rewriting:
    def __init__(self, name: str, parameters: hir.Parameters) -> None:
        self.name = name
        self.names = (*parameters.positional, *parameters.keyword_only)
        self.positional = parameters.positional
        self.by_place_alone = parameters.positional[: parameters.positional_only]
        self.found = False

    def block(self, block: hir.Block) -> hir.Block:
        """Loops are left as they are: `continue` would be theirs."""
        out: list[hir.Statement] = []
        for node in block:
            if isinstance(node, hir.If):
                node = replace(
                    node, then=self.block(node.then), otherwise=self.block(node.otherwise)
                )
            elif isinstance(node, hir.Escape) and node.kind == "return" and node.value is not None:
                out += self.result(node.loc, node.value)
                continue
            out.append(node)
        return tuple(out)

    def result(self, loc: Loc, value: hir.Expr) -> hir.Block:
        """What `return value` becomes."""
        if isinstance(value, hir.Conditional) and self.calls_itself(value):
            then, otherwise = (self.result(v.loc, v) for v in (value.then, value.otherwise))
            return (hir.If(loc, value.test, then, otherwise),)
        given = self.arguments(value)
        if given is None:
            return (hir.Escape(loc, "return", value),)
        self.found = True
        targets = hir.Sequence(loc, tuple, tuple(hir.Name(loc, n) for n in self.names))
        values = hir.Sequence(loc, tuple, tuple(given[n] for n in self.names))
        return (hir.Assign(loc, (targets,), values), hir.Escape(loc, "continue", None))

    def calls_itself(self, value: hir.Expr) -> bool:
        if isinstance(value, hir.Conditional):
            return self.calls_itself(value.then) or self.calls_itself(value.otherwise)
        return self.arguments(value) is not None

    def arguments(self, value: hir.Expr) -> dict[str, hir.Expr] | None:
        """The arguments by name, where the value is a call of the function with all of them."""
        if not isinstance(value, hir.Call) or not isinstance(value.function, hir.Name):
            return None
        if value.function.name != self.name or len(value.args) > len(self.positional):
            return None
        if any(isinstance(a, hir.Starred) for a in value.args):
            return None
        given = dict(zip(self.positional, value.args, strict=False))
        for name, expression in value.keywords:
            if name is None or name in given or name in self.by_place_alone:
                return None
            given[name] = expression
        return given if given.keys() == set(self.names) else None
