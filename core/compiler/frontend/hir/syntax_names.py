"""Private names of classes, as Python has them."""

from __future__ import annotations

import ast
import re

from .syntax_scopes import children

#: An attribute that is private to a class: `x.__name`.
_PRIVATE = re.compile(r"\.\s*__\w*[^\W_]_?\b")


def mangled(found: ast.Module, source: str) -> ast.Module:
    """The syntax tree of a file, its private attributes now named as Python has them."""
    if _PRIVATE.search(source):
        _mangle(found, "")
    return found


def _mangle(node: ast.AST, owner: str) -> None:
    """`x.__name` in the class `Owner` is `x._Owner__name` (Python's reference, "Identifiers").

    `owner`: the class around the node, without underscores in front; empty for none.
    """
    for child in children(node):
        _mangle(child, child.name.lstrip("_") if isinstance(child, ast.ClassDef) else owner)
        if owner and isinstance(child, ast.Attribute):
            name = child.attr
            if name.startswith("__") and not name.endswith("__"):
                child.attr = f"_{owner}{name}"


__all__ = ["mangled"]
