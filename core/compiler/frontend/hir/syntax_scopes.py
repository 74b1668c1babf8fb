"""What of a syntax tree belongs to one function."""

from __future__ import annotations

import ast

#: What has names of its own.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def own_nodes(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function's body, in the order of the text.

    A function within it is among them with its defaults and decorators, its body is not.
    """
    body = getattr(function, "body", [])
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(reversed(body)) if isinstance(body, list) else [body]
    while waiting:
        node = waiting.pop()
        found.append(node)
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, FUNCTIONS):
            parts = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
            parts += getattr(node, "decorator_list", [])
        waiting += reversed(parts)
    return found


__all__ = ["FUNCTIONS", "own_nodes"]
