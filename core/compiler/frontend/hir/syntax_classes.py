"""What of a class statement within a function can be compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .syntax_scopes import own_nodes

#: Expressions with names of their own, which in a class do not see those of its body.
_SCOPES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_HINT = "define the class at the top of the module"


def unfit(node: ast.ClassDef) -> tuple[str, str] | None:
    """What of the statement cannot be compiled, and what to do instead; None: nothing."""
    if getattr(node, "type_params", None):
        return "the type parameters of a class inside a function cannot be compiled", _HINT
    if any(isinstance(base, ast.Starred) for base in node.bases) or any(
        keyword.arg is None for keyword in node.keywords
    ):
        return "a class inside a function with a list of bases cannot be compiled", _HINT
    own = own_nodes(node)
    if any(isinstance(part, _SCOPES) for part in own):
        text = "a comprehension in the body of a class inside a function cannot be compiled"
        return text, "compute it before the class statement"
    if any(isinstance(part, ast.Global | ast.Nonlocal) for part in own):
        return "`global` and `nonlocal` in the body of a class cannot be compiled", _HINT
    return None


def annotated(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The annotated names of a class, in order."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.annotation


def keeps_text(lines: Sequence[str]) -> bool:
    """Whether Python keeps the text of a file's annotations."""
    return any(
        line.startswith("from __future__ import") and "annotations" in line for line in lines
    )


__all__ = ["annotated", "keeps_text", "unfit"]
