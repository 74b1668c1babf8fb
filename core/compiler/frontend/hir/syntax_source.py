"""Where the source of a function is, and whether it is still the one that Python loaded.

A file may be edited while a process runs. Python goes on with the code that it has; a program made
of the new text would be another one.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import TypeAlias

from .syntax_scopes import children

Function: TypeAlias = ast.FunctionDef | ast.Lambda

#: Code objects of a file's text, by line and name, for each of the flags that it may inherit.
Codes = dict[int, dict[tuple[int, str], list[CodeType]]]

#: Those of `from __future__ import`; the one of nested scopes is also set for another reason.
_INHERITED = 0
for _name in __future__.all_feature_names:
    if _name != "nested_scopes":
        _INHERITED |= getattr(__future__, _name).compiler_flag
#: The package itself, whose files do not change.
_HOUSE = str(Path(__file__).parents[3])


def is_current(code: CodeType, lines: list[str], node: ast.AST, codes: Codes) -> bool:
    """Whether the text of a function's file gives this code.

    node: of the function. codes: of the file, filled here. What has an `assert` is not compared:
    pytest replaces the code of those.
    """
    if code.co_filename.startswith(_HOUSE):
        return True
    flags = code.co_flags & _INHERITED
    if flags not in codes:
        codes[flags] = {}
        made = compile("".join(lines), code.co_filename, "exec", flags, dont_inherit=True)
        _gather(made, codes[flags])
    if code in codes[flags].get((code.co_firstlineno, code.co_name), ()):
        return True
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node))


def _gather(code: CodeType, into: dict[tuple[int, str], list[CodeType]]) -> None:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            into.setdefault((part.co_firstlineno, part.co_name), []).append(part)
            _gather(part, into)


def functions_at(node: ast.AST, line: int, name: str) -> Iterator[Function]:
    """The functions of a name that begin on a line, decorators included, as code objects say."""
    for child in children(node):
        first = line
        if isinstance(child, ast.stmt | ast.expr):
            decorators = getattr(child, "decorator_list", ())
            first = min([child.lineno, *(d.lineno for d in decorators)])
            if not first <= line <= (child.end_lineno or line):
                continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if first == line and child.name == name:
                yield child  # type: ignore[misc]
        elif isinstance(child, ast.Lambda) and child.lineno == line and name == "<lambda>":
            yield child
        yield from functions_at(child, line, name)


def by_columns(code: CodeType, nodes: list[Function]) -> Function | None:
    """The one of several lambdas on a line that a code object is of.

    It is the smallest one whose body holds all of the code's instructions.
    """
    spans = [
        (line, column, end_line, end_column)
        for line, end_line, column, end_column in code.co_positions()
        if line is not None
        and end_line is not None
        and column is not None
        and end_column is not None
        and end_column > 0
    ]
    if not spans:
        return None
    first = min((line, column) for line, column, _, _ in spans)
    last = max((line, column) for _, _, line, column in spans)
    holding: list[tuple[int, int, int, Function]] = []
    for node in nodes:
        body = node.body
        if isinstance(body, ast.expr):
            begin = (body.lineno, body.col_offset)
            end = (body.end_lineno or body.lineno, body.end_col_offset or body.col_offset)
            if begin <= first and last <= end:
                holding.append((end[0] - begin[0], end[1] - begin[1], len(holding), node))
    return min(holding)[3] if holding else None


__all__ = ["Codes", "Function", "by_columns", "functions_at", "is_current"]
