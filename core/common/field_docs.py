"""Attribute docstrings: the text under each field of a class, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def field_docs(owner: type) -> dict[str, str]:
    """The text under each annotated field of a class, its own or inherited, as one line each.

    The source is parsed when this is called, so that importing a class costs nothing. Classes
    without source, such as built-in ones, have none.
    """
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):
            continue
        (definition,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(definition, ast.ClassDef)
        for key, below in pairwise(definition.body):
            match key, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found
