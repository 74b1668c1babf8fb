"""Rows of a CSV file: numeric columns, and one of labels."""

from __future__ import annotations

import csv
import itertools
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from ...common.errors import DelianError
from . import rows

#: Characters in one field of a CSV file, and columns in a row.
FIELD_CHARS_MAX = 4096
COLUMNS_MAX = 1 << 16


class Columns(NamedTuple):
    """Places of a file's columns."""

    label: int
    """The column of labels, or of the numbers to learn."""
    features: list[int]
    """The columns of the features, in their order."""
    split: int | None
    """The column that marks rows that only evaluate; None: there is none."""


class CsvSource:
    """A CSV file (RFC 4180, UTF-8), with or without a line of names: one example a line."""

    def __init__(self, path: Path, settings: rows.DataSettings) -> None:
        self.path, self.settings = path, settings

    def version(self) -> int | None:
        return rows.file_version(self.path)

    def read(self, row: rows.RowType) -> rows.Rows:
        rows.require(self.path)
        rows.check_size(str(self.path), self.path.stat().st_size, self.settings.bytes_max)
        csv.field_size_limit(FIELD_CHARS_MAX)
        try:
            with self.path.open(encoding="utf-8", newline="") as stream:
                return self._rows(stream, row.numbers)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DelianError(f"{self.path} cannot be read: {error}", "write it again") from None

    def _rows(self, stream: TextIO, numbers: bool) -> rows.Rows:
        lines = _numbered(csv.reader(stream))
        first = next(lines, None)
        if first is None:
            raise rows.NoDataError(f"{self.path} is empty", "it needs a line for each example")
        columns, width, named = self.form(first[1])
        if not named:
            lines = itertools.chain([first], lines)
        return self.rows_of(lines, columns, width, numbers)

    def form(self, fields: list[str]) -> tuple[Columns, int, bool]:
        """Places of the columns, how many there are, and whether the first line has names.

        fields: of the first line. Raises DelianError where a column that was chosen is missing.
        """
        if len(fields) > COLUMNS_MAX:
            raise DelianError(f"{self.path} has {len(fields)} columns; at most {COLUMNS_MAX}")
        named = not all(_is_number(f) for f in fields) and any(not _is_number(f) for f in fields)
        # A line of text labels alone does not make the first line a line of names.
        named = named and not self._reads_as_data(fields)
        names = [f.strip() for f in fields] if named else [str(i) for i in range(len(fields))]
        return self._columns(names), len(names), named

    def rows_of(
        self, lines: Iterable[tuple[int, list[str]]], columns: Columns, width: int, numbers: bool
    ) -> rows.Rows:
        """Lines with their numbers as rows. Raises DelianError naming the line that is wrong."""
        x, y, split = array("f"), array("f" if numbers else "q"), bytearray()
        for number, fields in lines:
            if len(fields) != width:
                raise DelianError(
                    f"{self.path}, line {number}: {len(fields)} fields, and the first line has "
                    f"{width}",
                    "every line needs a field for each column",
                )
            self._add(x, y, split, number, fields, columns)
        if not y:
            raise rows.NoDataError(f"{self.path} holds names and no examples", "append examples")
        table = np.frombuffer(x, np.float32).reshape(len(y), len(columns.features))
        labels = np.frombuffer(y, np.float32 if numbers else np.int64)
        query = None if columns.split is None else np.frombuffer(split, np.uint8)
        return rows.Rows(table, labels if numbers else labels.astype(np.int32), query)

    def _reads_as_data(self, fields: list[str]) -> bool:
        """Whether only the label is text, and is one of the classes."""
        label = self._columns([str(i) for i in range(len(fields))], lenient=True).label
        others = [f for i, f in enumerate(fields) if i != label]
        return all(map(_is_number, others)) and fields[label].strip() in self.settings.classes

    def _columns(self, names: list[str], *, lenient: bool = False) -> Columns:
        wanted = self.settings

        def place(name: str) -> int:
            if name in names:
                return names.index(name)
            if name.isdigit() and int(name) < len(names):
                return int(name)
            if lenient:
                return len(names) - 1
            raise DelianError(
                f"{self.path} has no column `{name}`; it has {', '.join(names[:20])}",
                "name columns as its first line does, or by number from 0",
            )

        split = place(wanted.split) if wanted.split else None
        others = [i for i in range(len(names)) if i != split]
        label = place(wanted.label) if wanted.label else others[-1] if others else 0
        features = [place(c) for c in wanted.columns] or [i for i in others if i != label]
        if not features:
            raise DelianError(
                f"{self.path} has {'one column' if len(names) == 1 else 'no column of features'}",
                "it needs features and a label",
            )
        if label == split:
            raise DelianError(
                f"{self.path}: column `{names[label]}` is both data.label and data.split",
                "name two columns",
            )
        return Columns(label, features, split)

    def _add(
        self,
        x: array[float],
        y: array[Any],
        split: bytearray,
        number: int,
        fields: list[str],
        columns: Columns,
    ) -> None:
        where = f"{self.path}, line {number}"
        try:
            x.extend(float(fields[i]) for i in columns.features)
            if y.typecode == "f":
                y.append(float(fields[columns.label]))
        except ValueError as error:
            raise DelianError(
                f"{where}: {error}",
                "features are numbers, and so is what is learnt of them, where the run learns"
                " numbers; choose columns with data.columns and data.label",
            ) from None
        if y.typecode == "q":
            y.append(rows.class_number(fields[columns.label], self.settings.classes, where))
        if columns.split is not None:
            mark = fields[columns.split].strip()
            if mark not in ("0", "1"):
                raise DelianError(
                    f"{where}: {mark[:40]!r} in the column of data.split",
                    "1: the row only judges; 0: it is trained on",
                )
            split.append(int(mark))
        if x.itemsize * len(x) > self.settings.bytes_max:
            rows.check_size(str(self.path), x.itemsize * len(x), self.settings.bytes_max)


def _numbered(lines: Iterable[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not empty, with their numbers from 1."""
    return ((i, line) for i, line in enumerate(lines, 1) if line)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
