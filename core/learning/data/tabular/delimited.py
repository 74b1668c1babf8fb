"""Text files of separated fields (RFC 4180): CSV, TSV, semicolons or bars, gzipped or not.

The separator is found by the first lines. Errors name the file and the line.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ....common.errors import DelianError
from ....common.nouns import counted
from ..data_files import read_gzip, read_text, require_file, utf8
from .columns import Column, number, typed

TABLE_BYTES_MAX = 1 << 30
COLUMNS_MAX = 1 << 14
#: Characters of a field.
FIELD_CHARS_MAX = 1 << 17
#: Separators; `_SNIFFED` records are read to find the one.
_SEPARATORS = (",", ";", "\t", "|")
_SNIFFED = 20
#: Records that the first one is compared with.
_NAMED_BY = 1000
#: How files begin that are no text, and what to do with them.
_BEGINNINGS = (
    (b"\x1f\x8b", "gzip", "let its name end with .gz"),
    (b"PK\x03\x04", "a spreadsheet or a zip archive", "save it as CSV, or unpack it"),
    (b"PAR1", "Parquet", "let its name end with .parquet"),
)
SUFFIXES = (".csv", ".tsv")
#: A record that is put behind a file's last: it is part of another where a quote is left open.
_END = "\0"


class Delimited(NamedTuple):
    """The fields of a file."""

    fields: dict[str, list[str]]
    """By column, as they are written."""
    separator: str

    def columns(self) -> dict[str, Column]:
        """Numbers where all of a column is numbers, else text."""
        commas = self.separator in ";|"
        return {name: typed(fields, commas) for name, fields in self.fields.items()}


def table_text(path: Path) -> str:
    """The text of a file, unpacked where its name ends with .gz. Raises DelianError."""
    if path.suffix.lower() == ".gz":
        text = utf8(path, read_gzip(path, TABLE_BYTES_MAX))
    else:
        _check_beginning(path)
        text = read_text(path, TABLE_BYTES_MAX)
    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        raise DelianError(
            f"{path}:{line}: a byte that is zero, so this is no text",
            "it may be UTF-16 or a binary file: write it as UTF-8 text",
        )
    return text


def _check_beginning(path: Path) -> None:
    """Raises DelianError for a file that begins like one of another kind."""
    require_file(path, "give the file's path with --data FILE or data.path")
    try:
        with path.open("rb") as file:
            begin = file.read(4)
    except OSError as error:
        raise DelianError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from None
    for mark, what, hint in _BEGINNINGS:
        if begin.startswith(mark):
            raise DelianError(f"{path} is {what}, and no text", hint)


def read_delimited(path: Path, chars_max: int = FIELD_CHARS_MAX) -> Delimited:
    """The fields of a file by column. Raises DelianError for one that cannot be read.

    A first line without numbers has the names of the columns; else they are numbered from 0.
    chars_max: characters of a field.
    """
    text = table_text(path)
    tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
    separator = "\t" if tabs else _separator(text)
    lines = list(_records(path, text, separator, chars_max))
    if not lines:
        raise DelianError(f"{path} is empty", "it needs a line for each row")
    width = len(lines[0][1])
    if width > COLUMNS_MAX:
        raise DelianError(f"{path} has {width} columns; at most {COLUMNS_MAX}", "choose some")
    for start, fields in lines:
        if len(fields) != width:
            raise _ragged(path, start, fields, width, separator)
    first = [field.strip() for field in lines[0][1]]
    has_names = _are_names(first, [fields for _, fields in lines[1:]])
    names = first if has_names else [str(k) for k in range(width)]
    rows = [fields for _, fields in (lines[1:] if has_names else lines)]
    if not rows:
        raise DelianError(f"{path} holds names and no rows", "append rows")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DelianError(f"{path} has two columns `{twice}`", "give each its own name")
    return Delimited({name: [row[k] for row in rows] for k, name in enumerate(names)}, separator)


def _are_names(first: list[str], others: list[list[str]]) -> bool:
    """Whether the first record has the names of columns.

    It has where none of it is a number. Where some is (names such as 2019), its texts are names if
    each is in its column once and the column has numbers, or texts that recur.
    """
    texts = [k for k, field in enumerate(first) if number(field) is None]
    if len(texts) == len(first):
        return True
    sure = False
    for k in texts:
        column = [fields[k].strip() for fields in others[:_NAMED_BY]]
        if first[k] in column:
            return False
        plain = bool(column) and all(number(field) is not None for field in column if field)
        sure = sure or plain or (len(column) > 1 and len(set(column)) <= len(column) // 2)
    return sure


def _records(
    path: Path, text: str, separator: str, chars_max: int
) -> Iterator[tuple[int, list[str]]]:
    """(line that it starts on, its fields) of each record; empty lines are left out."""
    csv.field_size_limit(chars_max)
    lines = itertools.chain(io.StringIO(text, newline=""), (_END,))
    reader = csv.reader(lines, delimiter=separator)
    start = 1
    try:
        for fields in reader:
            if fields == [_END]:
                return
            if fields and fields[-1].endswith(_END):
                raise DelianError(
                    f"{path}:{start}: a quote is opened in the row that begins here, and never"
                    " closed",
                    'write it as CSV (RFC 4180): a quote in a field is written twice, "..""..."',
                )
            if fields:
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        quote = " (is a quote left open on this line?)" if "field larger" in str(error) else ""
        raise DelianError(
            f"{path}:{start}: cannot be read: {error}{quote}", "write it as CSV (RFC 4180)"
        ) from None


def _ragged(path: Path, start: int, fields: list[str], width: int, separator: str) -> DelianError:
    hint = "every row needs a field for each column"
    if any("\n" in field for field in fields):
        hint += "; a quote that is opened on this line is closed on another, or never"
    elif width == 1 and start > 1:
        hint += "; if lines above the columns' names are a title, delete them"
    elif len(fields) > width:
        hint += f'; a field with {separator!r} in it needs quotes: "..."'
    return DelianError(
        f"{path}:{start}: {counted(len(fields), 'field', 'fields')}, and the first row has {width}",
        hint,
    )


def _separator(text: str) -> str:
    """The separator that gives the first records as many fields, and the most."""
    first = text.partition("\n")[0]
    best, found = (False, 1), ","
    for each in _SEPARATORS:
        if each not in first:
            continue
        head = "".join(text[:FIELD_CHARS_MAX].splitlines(keepends=True)[: 2 * _SNIFFED])
        csv.field_size_limit(FIELD_CHARS_MAX)
        reader = csv.reader(io.StringIO(head, newline=""), delimiter=each)
        widths = [len(fields) for _, fields in zip(range(_SNIFFED), reader, strict=False) if fields]
        if widths and (merit := (len(set(widths)) == 1, widths[0])) > best:
            best, found = merit, each
    return found
