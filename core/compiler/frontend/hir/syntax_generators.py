"""Which functions are generators, and what no call of a function may hold."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .syntax_scopes import own_nodes

_Node = ast.expr | ast.stmt


def looked_at(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, lines: Sequence[str]
) -> tuple[bool, _Node | None]:
    """Whether a function is a generator, and what keeps it from being compiled.

    lines: of its file.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        return False, function
    text = lines[function.lineno - 1 : function.end_lineno]
    if not any("yield" in line or "await" in line for line in text):
        return False, None
    nodes = own_nodes(function)
    waits = [node for node in nodes if isinstance(node, ast.Await)]
    yields = [node for node in nodes if isinstance(node, ast.Yield | ast.YieldFrom)]
    unfit: list[_Node] = [*waits]
    if yields:
        unfit += yields if isinstance(function, ast.Lambda) else []
        unfit += [node for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    return bool(yields), unfit[0] if unfit else None


__all__ = ["looked_at"]
