"""Sets of constants, whose order follows from how Python's compiler makes them."""

from __future__ import annotations

import ast
from typing import Any


def folded(node: ast.expr) -> frozenset[Any] | None:
    """The constant that Python makes of `{1, 2, 3}`; None: it adds the items one by one.

    A `for` goes through this constant, and elsewhere a set is made of it. Its table has another
    size than that of a set to which the items are added, so another order.
    """
    if not isinstance(node, ast.Set) or len(node.elts) < 3:
        return None
    code = compile(ast.Expression(node), "<set>", "eval", dont_inherit=True)
    if code.co_names or len(code.co_consts) != 1:
        return None
    found = code.co_consts[0]
    return found if isinstance(found, frozenset) else None


__all__ = ["folded"]
