"""Why a program may differ without a fault: ints that leave 64 bits, decisions at the last bit."""

from __future__ import annotations

import ast
import random
from typing import Any

import numpy as np

_LIMIT = 2**63


def overflows(text: str) -> bool:
    """Whether an int leaves its 64 bits, or a number becomes complex, while Python runs it.

    Each operation is looked at: the operators of its text become calls.
    """
    found = []

    def watched(value: Any) -> Any:
        if type(value) is int and not -_LIMIT <= value < _LIMIT:
            found.append(value)
        if isinstance(value, complex | np.complexfloating):
            found.append(value)
        return value

    _run(text, _Watch(), {"_watched": watched})
    return bool(found)


class _Watch(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _called(node)

    visit_UnaryOp = visit_BinOp  # type: ignore[assignment]
    visit_Call = visit_BinOp  # type: ignore[assignment]

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        look = _called(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
        return [node, ast.copy_location(ast.Expr(look), node)]


class _Disturb(ast.NodeTransformer):
    """Operands, which are only read, and results of operators and calls: functions round too.

    A call may give an array that others hold, so of its results single numbers alone are changed.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return _called(node, "_watched_number")

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        node.left, node.right = _called(node.left), _called(node.right)
        return _called(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        node.operand = _called(node.operand)
        return _called(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            node.left = _called(node.left)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        node.value = _called(node.value)
        return node


def _called(node: ast.expr, name: str = "_watched") -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [node], []), node)


#: Errors in the last bits of floats, by their size.
_ERRORS = {2: 2.0**-11, 4: 2.0**-23, 8: 2.0**-51}


def jumps(text: str) -> set[str]:
    """In what ways Python's own results differ when floats are changed in their last bits: "value",
    "shape", "class", "structure".

    Every operation that gives a float with a fraction is disturbed, and the signs of zeros are
    drawn. A number that is a multiple of 1/64 is left: those that programs start from are exact in
    every order of operations.
    """
    from .judge import difference

    base = _run(text, ast.NodeTransformer(), {})
    ways = set()
    for seed in range(3):
        rng = random.Random(seed)

        def disturbed(value: Any, rng: random.Random = rng) -> Any:
            dtype = getattr(value, "dtype", np.dtype(float) if type(value) is float else None)
            if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind == "f":
                made = [disturbed(v) for v in value.ravel()]
                return np.array(made, value.dtype).reshape(value.shape)
            if dtype is None or dtype.kind != "f" or np.ndim(value):
                return value
            if value == 0:
                return type(value)(rng.choice((0.0, -0.0)))
            if not np.isfinite(value) or float(value) * 64 == int(float(value) * 64):
                return value
            return type(value)(value * (1 + rng.choice((-1, 1)) * _ERRORS[dtype.itemsize]))

        def number(value: Any, disturbed: Any = disturbed) -> Any:
            return value if isinstance(value, np.ndarray) else disturbed(value)

        watch = {"_watched": disturbed, "_watched_number": number}
        said = difference(_run(text, _Disturb(), watch), base)
        if said and not said.startswith("sign"):
            ways.add(said.split()[0])
    return ways


def _run(text: str, transformer: ast.NodeTransformer, more: dict[str, Any]) -> list[Any]:
    """The results of all calls, of a program that is changed so."""
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            transformer.visit(node)
    ast.fix_missing_locations(tree)
    names: dict[str, Any] = {"__name__": "program", **more}
    exec(compile(tree, "<disturbed>", "exec", dont_inherit=True), names)
    out: list[Any] = []
    for make in names["CALLS"]:
        given = make()
        try:
            out += [names["f"](*given), given]
            names["between"]()
        except Exception as e:
            out.append(type(e).__name__)
            break
    return out
