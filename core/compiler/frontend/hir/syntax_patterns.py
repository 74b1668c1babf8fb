"""The patterns of `match` to HIR: tests of the subject's structure, names, comparisons."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ....common.errors import Loc
from . import hir


class Converter(Protocol):
    """What `syntax` has for expressions."""

    def loc(self, node: ast.expr | ast.stmt | ast.pattern) -> Loc: ...
    def expr(self, node: ast.expr) -> hir.Expr: ...


#: Classes whose one positional pattern is the value itself (PEP 634).
_SELF_MATCHING = (
    "bool",
    "bytes",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "set",
    "str",
    "tuple",
)


class Pattern:
    """What a `case` asks: structure first, then values are compared, then names are bound."""

    def __init__(self, converter: Converter) -> None:
        self.converter = converter
        self.structure: list[hir.Expr] = []
        self.values: list[hir.Expr] = []
        self.names: list[hir.Statement] = []

    def case(self, loc: Loc, guard: hir.Expr | None, body: hir.Block, rest: hir.Block) -> hir.Block:
        """The `if` of a case: its body where the pattern fits and the guard holds, else the rest.

        Names are bound where the pattern fits, also where the guard then fails.
        """
        if guard is None or not self.names:
            test = self.test(loc, () if guard is None else (guard,))
            return (hir.If(loc, test, (*self.names, *body), rest),)
        taken = hir.Name(loc, f"$case{loc.line}.{loc.column}")
        truth = hir.Conditional(loc, guard, hir.Constant(loc, True), hir.Constant(loc, False))
        bound = (*self.names, hir.Assign(guard.loc, (taken,), truth))
        return (
            hir.Assign(loc, (taken,), hir.Constant(loc, False)),
            hir.If(loc, self.test(loc), bound, ()),
            hir.If(loc, taken, (*self.names, *body), rest),  # Of the body it is known that it fits.
        )

    def test(self, loc: Loc, more: tuple[hir.Expr, ...] = ()) -> hir.Expr:
        """Whether the pattern fits."""
        tests = (*self.structure, *self.values, *more)
        return hir.Boolean(loc, "and", tests) if tests else hir.Constant(loc, True)

    def read(self, node: ast.pattern, subject: hir.Expr) -> bool:
        """Adds a pattern of a subject; whether the language has it."""
        loc = self.converter.loc(node)
        if isinstance(node, ast.MatchValue):
            value = self.converter.expr(node.value)
            self.values.append(hir.Compare(loc, ("==",), (subject, value)))
            return True
        if isinstance(node, ast.MatchSingleton):
            constant = hir.Constant(loc, node.value)
            self.values.append(hir.Compare(loc, ("is",), (subject, constant)))
            return True
        if isinstance(node, ast.MatchAs):
            fits = node.pattern is None or self.read(node.pattern, subject)
            if node.name is not None:
                self.names.append(hir.Assign(loc, (hir.Name(loc, node.name),), subject))
            return fits
        if isinstance(node, ast.MatchOr):
            return self.alternatives(node, subject)
        if isinstance(node, ast.MatchSequence):
            return self.sequence(node, subject)
        if isinstance(node, ast.MatchMapping) and node.rest is None:
            self.ask(loc, isinstance, subject, hir.Constant(loc, Mapping))
            keys = [self.converter.expr(k) for k in node.keys]
            self.structure += [hir.Compare(loc, ("in",), (key, subject)) for key in keys]
            items = [hir.Subscript(loc, subject, key) for key in keys]
            return all(self.read(p, v) for p, v in zip(node.patterns, items, strict=True))
        return isinstance(node, ast.MatchClass) and self.of_class(node, subject)

    def ask(self, loc: Loc, function: Any, *args: hir.Expr) -> None:
        self.structure.append(hir.Call(loc, hir.Constant(loc, function), args, ()))

    def alternatives(self, node: ast.MatchOr, subject: hir.Expr) -> bool:
        loc, either = self.converter.loc(node), []
        for inner in node.patterns:
            pattern = Pattern(self.converter)
            if not pattern.read(inner, subject) or pattern.names:
                return False
            either.append(pattern.test(loc))
        self.values.append(hir.Boolean(loc, "or", tuple(either)))
        return True

    def sequence(self, node: ast.MatchSequence, subject: hir.Expr) -> bool:
        loc, parts = self.converter.loc(node), node.patterns
        star = next((k for k, p in enumerate(parts) if isinstance(p, ast.MatchStar)), None)
        self.ask(loc, isinstance, subject, hir.Constant(loc, Sequence))
        text = hir.Constant(loc, (str, bytes, bytearray))
        is_text = hir.Call(loc, hir.Constant(loc, isinstance), (subject, text), ())
        self.structure.append(hir.Unary(loc, "not", is_text))
        length = hir.Call(loc, hir.Constant(loc, len), (subject,), ())
        least = hir.Constant(loc, len(parts) - (star is not None))
        op = "==" if star is None else ">="
        self.structure.append(hir.Compare(loc, (op,), (length, least)))
        for k, part in enumerate(parts):
            if isinstance(part, ast.MatchStar):
                after = k + 1 - len(parts)
                stop = hir.Constant(loc, after) if after else None
                items = hir.Subscript(
                    loc, subject, hir.Slice(loc, hir.Constant(loc, k), stop, None)
                )
                if part.name is not None:
                    made = hir.Call(loc, hir.Constant(loc, list), (items,), ())
                    self.names.append(hir.Assign(loc, (hir.Name(loc, part.name),), made))
                continue
            place = k if star is None or k < star else k - len(parts)
            if not self.read(part, hir.Subscript(loc, subject, hir.Constant(loc, place))):
                return False
        return True

    def of_class(self, node: ast.MatchClass, subject: hir.Expr) -> bool:
        loc, cls = self.converter.loc(node), self.converter.expr(node.cls)
        self.ask(loc, isinstance, subject, cls)
        fits = True
        itself = isinstance(node.cls, ast.Name) and node.cls.id in _SELF_MATCHING
        for k, part in enumerate(node.patterns):
            names = hir.Attribute(loc, cls, "__match_args__")
            name = hir.Subscript(loc, names, hir.Constant(loc, k))
            field = hir.Call(loc, hir.Constant(loc, getattr), (subject, name), ())
            fits = fits and self.read(part, subject if itself else field)
        for attribute, part in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            fits = fits and self.read(part, hir.Attribute(loc, subject, attribute))
        return fits
