"""Faults of NumPy's, which programs do not have: a program that Python runs without them."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np


def sound(text: str) -> str:
    """The program with a `np.negative` that reads what it is given, whatever it writes to, and
    powers that do not depend on whether their exponents lie in memory as one number.
    """
    made = ast.unparse(_Sound().visit(ast.parse(text)))
    return made if "_negative" in made or "_power" in made else text


class _Sound(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node) not in ("np.negative", "np.power"):
            return node
        return ast.copy_location(ast.Name(f"_{node.attr}", ast.Load()), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow) or not isinstance(node.target, ast.Name):
            return node
        now = [ast.Name(node.target.id, ast.Load()), node.value]
        called = ast.Call(ast.Name("_power_in", ast.Load()), now, [])
        return ast.copy_location(ast.Assign([node.target], called), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow) or isinstance(node.right, ast.Constant):
            return node
        called = ast.Call(ast.Name("_power_of", ast.Load()), [node.left, node.right], [])
        return ast.copy_location(called, node)


def negative(x: Any, *args: Any, **keywords: Any) -> Any:
    """`np.negative`, of a copy: of a strided view onto itself NumPy 2.4 reads other elements."""
    return np.negative(x.copy() if isinstance(x, np.ndarray) else x, *args, **keywords)


def power(x: Any, n: Any, *args: Any, **keywords: Any) -> Any:
    """`np.power`: for one exponent of 0.5 NumPy 2.4 takes the root, which is NaN of -inf."""
    dtype = np.result_type(x, n)
    if args or keywords or not np.issubdtype(dtype, np.floating):
        return np.power(x, n, *args, **keywords)
    shape = (2, *np.broadcast_shapes(np.shape(x), np.shape(n)))
    return np.power(*(np.full(shape, v, dtype) for v in (x, n)))[0]


def power_of(x: Any, n: Any) -> Any:
    """`x ** n`, with `power` for arrays."""
    return power(x, n) if isinstance(x, np.ndarray) or isinstance(n, np.ndarray) else x**n


def power_in(x: Any, n: Any) -> Any:
    """What `x` is after `x **= n`."""
    if not isinstance(x, np.ndarray):
        return power_of(x, n)
    np.copyto(x, power(x, n), casting="same_kind")
    return x
