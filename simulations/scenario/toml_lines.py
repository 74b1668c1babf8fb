"""The lines of a TOML file's keys, for error messages. `tomllib` keeps no positions.

A small scan over the text: table headers and `key =` at the start of a line, stepping over strings,
arrays and comments. It runs on files that tomllib has already accepted, so it need not judge them.
"""

from __future__ import annotations

import re

from ...core.common.errors import Loc

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_KEY})[ \t]*\]\]?")
_ASSIGNMENT = re.compile(rf"[ \t]*({_KEY})[ \t]*=[ \t]*")
_SKIP = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|'
    r"'''.*?'''|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'|"
    r"#[^\n]*",
    re.DOTALL,
)

KeyPath = tuple[str, ...]


def key_locations(text: str, file: str) -> dict[KeyPath, Loc]:
    """The span of every key and table header, by its path.

    The keys of an inline table have the table's span.
    """
    found: dict[KeyPath, Loc] = {}
    table: KeyPath = ()
    position, line = 0, 1
    while position < len(text):
        start = position
        if match := _HEADER.match(text, position):
            table = _parts(match[1])
            found.setdefault(table, _loc(file, line, match, start))
            position = match.end()
        elif match := _ASSIGNMENT.match(text, position):
            path = table + _parts(match[1])
            found.setdefault(path, _loc(file, line, match, start))
            position = match.end()
        position = _end_of_statement(text, position)
        line += text.count("\n", start, position)
    return found


def _loc(file: str, line: int, match: re.Match[str], start: int) -> Loc:
    return Loc(file, line, match.start(1) - start, line, match.end(1) - start)


def _parts(key: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def _end_of_statement(text: str, position: int) -> int:
    """The start of the line after the value that begins here.

    A value goes on while brackets are open.
    """
    depth = 0
    while position < len(text):
        if match := _SKIP.match(text, position):
            position = match.end()
            continue
        character = text[position]
        position += 1
        depth += (character in "[{") - (character in "]}")
        if character == "\n" and depth <= 0:
            break
    return position
