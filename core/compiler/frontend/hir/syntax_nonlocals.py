"""Names of a function that functions within it write: `nonlocal`.

Such a name becomes a list of one item, which all of them share, as a cell of Python's:

    def f(x):                        def f(x):
        total = 0.0                      total$ = [UNSET]; total$[0] = 0.0
        def add(v):              ->      def add(v):
            nonlocal total                   total$[0] += v
            total += v                   add(x)
        add(x)                           return total$[0]
        return total
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeVar

from .syntax_scopes import FUNCTIONS, own_nodes

_Function = TypeVar("_Function", bound=ast.FunctionDef | ast.Lambda)


class _Unset:
    """What a name holds before it is set; nothing takes it."""

    def __bool__(self) -> bool:
        raise UnboundLocalError("a name that a nested function writes is read before it is set")

    def __repr__(self) -> str:
        return "a name that is not set yet"


UNSET = _Unset()


def boxed(function: _Function, lines: Sequence[str]) -> _Function:
    """A function whose shared names are items of lists; itself where it has none.

    A `nonlocal` stays where the name is of a function around this one, or is bound otherwise than
    by an assignment or a loop.
    """
    text = lines[function.lineno - 1 : function.end_lineno]
    if not any("nonlocal" in line for line in text):
        return function
    made: _Function = _copied(function)
    _visit(made)
    return made


def _copied(part: Any) -> Any:
    """A syntax tree of its own; `copy.deepcopy` takes ten times as long."""
    if isinstance(part, list):
        return [_copied(p) for p in part]
    if not isinstance(part, ast.AST):
        return part
    made = type(part).__new__(type(part))
    made.__dict__.update({name: _copied(value) for name, value in vars(part).items()})
    return made


def _visit(function: ast.AST) -> None:
    """Boxes what functions within this one, and in turn within those, write."""
    own = own_nodes(function)
    inner = [part for node in own if isinstance(node, FUNCTIONS) for part in _nodes_of_all(node)]
    written = {n for p in inner if isinstance(p, ast.Nonlocal) for n in p.names}
    if not written:
        return
    if isinstance(function, ast.FunctionDef):
        declared = {n for p in own if isinstance(p, ast.Global | ast.Nonlocal) for n in p.names}
        names = (written & _bound(function, own)) - declared - _bound_otherwise([*own, *inner])
        if names:
            _Boxes(frozenset(names)).rewrite(function)
    for node in own_nodes(function):
        if isinstance(node, FUNCTIONS):
            _visit(node)


def _nodes_of_all(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function and of those within it."""
    own = own_nodes(function)
    return [*own, *(p for node in own if isinstance(node, FUNCTIONS) for p in _nodes_of_all(node))]


def _parameters(function: Any) -> set[str]:
    given: ast.arguments = function.args
    rest = [a for a in (given.vararg, given.kwarg) if a is not None]
    return {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)}


def _bound(function: Any, own: list[ast.AST]) -> set[str]:
    """The names that a function of these nodes assigns or is given; its comprehensions' too."""
    names = (node for node in own if isinstance(node, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)} | _parameters(function)


def _bound_otherwise(nodes: list[ast.AST]) -> set[str]:
    """Names that are bound by what needs a plain name, or that a comprehension has too."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):  # A name in its body is another one.
                names = (n for n in own_nodes(node) if isinstance(n, ast.Name))
                found |= {name, *(n.id for n in names if isinstance(n.ctx, ast.Store))}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(a.asname or a.name).partition(".")[0] for a in names}
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                found.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.NamedExpr(target=ast.Name(id=name)):
                found.add(name)
            case ast.Delete(targets=targets):
                found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets = [part.target for part in node.generators]
                found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return found


class _Boxes(ast.NodeTransformer):
    """Names of a function as items of lists, in it and in the functions that take them from it."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def rewrite(self, owner: ast.FunctionDef) -> None:
        parameters = _parameters(owner)
        owner.body = [self.visit(statement) for statement in owner.body]
        first = owner.body[0]
        made: list[ast.stmt] = []
        for name in sorted(self.names):
            held: ast.expr = ast.Name(name, ast.Load()) if name in parameters else _unset()
            box = ast.Assign([ast.Name(_box(name), ast.Store())], ast.List([held], ast.Load()))
            made.append(ast.fix_missing_locations(ast.copy_location(box, first)))
        owner.body[:0] = made

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.names:
            return node
        box = ast.Name(_box(node.id), ast.Load())
        item = ast.Subscript(box, ast.Constant(0), node.ctx)
        return ast.fix_missing_locations(ast.copy_location(item, node))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [name for name in node.names if name not in self.names]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.Lambda) -> ast.AST:
        """Its own names are others; its defaults are of the function around it."""
        own = own_nodes(node)
        declared = {n for p in own if isinstance(p, ast.Nonlocal) for n in p.names}
        hidden = self.names & (_bound(node, own) - declared)
        args: ast.arguments = node.args
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]
        inner = _Boxes(self.names - hidden)
        if isinstance(node, ast.Lambda):
            node.body = inner.visit(node.body)
        else:
            node.decorator_list = [self.visit(d) for d in node.decorator_list]
            node.body = [inner.visit(statement) for statement in node.body]
        return node


def _box(name: str) -> str:
    return f"{name}$"


def _unset() -> ast.expr:
    value: Any = UNSET
    return ast.Constant(value)


__all__ = ["UNSET", "boxed"]
