"""Tables in JSON: an object a line (JSON Lines), one array of objects, or one object of arrays.

An object inside a row is columns of its own (`address.city`); a list is no value of a table, and
its column is text. NaN is a missing value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ....common.errors import DelianError
from .columns import Column, texts, typed
from .delimited import COLUMNS_MAX, FIELD_CHARS_MAX, table_text

SUFFIXES = (".jsonl", ".ndjson", ".json")
#: Cells of a table whose rows may name any columns: an empty one takes memory as well.
CELLS_MAX = 1 << 28
#: Objects within objects.
_DEPTH_MAX = 8
_HINT = 'write a line for each row: {"age": 41, "city": "Oslo"}'


def read_json(path: Path) -> dict[str, Column]:
    """The columns of a file. Raises DelianError, with the line where there is one."""
    text = table_text(path)
    if (whole := _whole(text)) is not None:
        return {name: _column(values) for name, values in whole.items()}
    rows = list(_array(path, text) if text.lstrip()[:1] == "[" else _lines(path, text))
    if not rows:
        raise DelianError(f"{path} is empty", _HINT)
    names: dict[str, None] = {}
    for line, row in rows:
        names.update(dict.fromkeys(row))
        if len(names) > COLUMNS_MAX or len(names) * len(rows) > CELLS_MAX:
            raise DelianError(
                f"{path}:{line}: {len(names)} columns so far, of {len(rows)} rows",
                f"at most {COLUMNS_MAX} columns and {CELLS_MAX} values",
            )
    return {name: _column([row.get(name) for _, row in rows]) for name in names}


def _whole(text: str) -> dict[str, list[Any]] | None:
    """The columns of one object of arrays, or of objects by row; None: it is no such object."""
    if text.lstrip()[:1] != "{":
        return None
    try:
        found = json.loads(text, parse_constant=_constant, parse_int=float)
    except (ValueError, RecursionError):
        return None  # an object a line
    kinds = {type(values) for values in found.values()}
    if kinds not in ({list}, {dict}) or len({len(values) for values in found.values()}) > 1:
        return None
    return {
        str(name): list(values.values()) if isinstance(values, dict) else values
        for name, values in found.items()
    }


def _lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _row(path, number, _parsed(path, number, line))


def _array(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    found = _parsed(path, 1, text)
    if not isinstance(found, list):
        raise DelianError(f"{path} is no array of rows", _HINT)
    for number, row in enumerate(found, 1):
        yield number, _row(path, number, row)


def _parsed(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_constant, parse_int=float)
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        raise DelianError(f"{where}: no JSON: {error.msg} (column {error.colno})", _HINT) from None
    except (ValueError, RecursionError) as error:
        raise DelianError(f"{path}:{line}: no JSON that is read here: {error}", _HINT) from None


def _constant(name: str) -> None:
    if name != "NaN":
        raise ValueError(f"{name} is no value of a table")


def _row(path: Path, line: int, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise DelianError(f"{path}:{line}: a {kind}, and each row is an object", _HINT)
    row: dict[str, Any] = {}
    _flatten(path, line, "", found, row, 0)
    return row


def _flatten(
    path: Path, line: int, before: str, found: dict[str, Any], row: dict[str, Any], depth: int
) -> None:
    if depth > _DEPTH_MAX:
        raise DelianError(f"{path}:{line}: objects within objects, {depth} deep", _HINT)
    for key, value in found.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            _flatten(path, line, f"{name}.", value, row, depth + 1)
            continue
        if isinstance(value, str) and len(value) > FIELD_CHARS_MAX:
            raise DelianError(
                f"{path}:{line}: `{name}` has {len(value)} characters",
                f"at most {FIELD_CHARS_MAX}",
            )
        row[name] = value


def _column(values: list[Any]) -> Column:
    if all(v is None or isinstance(v, bool | int | float) for v in values):
        return np.array([np.nan if v is None else float(v) for v in values])
    if any(isinstance(v, list) for v in values):
        return texts(["" if v is None else json.dumps(v) for v in values])
    return typed([_text(v) for v in values])


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and np.isfinite(value) and value == int(value):
        return f"{int(value)}"
    return str(value)
