"""Whether the source of a function is still the one that Python loaded.

A file may be edited while a process runs. Python goes on with the code that it has; a program made
of the new text would be another one.
"""

from __future__ import annotations
import __future__

import ast
from pathlib import Path
from types import CodeType

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


__all__ = ["Codes", "is_current"]
