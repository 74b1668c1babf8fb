"""A CSV file that is too large for memory: an index of its lines, made once, and blocks of rows.

The file is read once to find where every `STRIDE`-th line begins; line ends within quotes do not
count. A range of rows is then one read. Numbers are parsed by NumPy; a block that NumPy refuses is
read again by `csv`, which says the line and the field that are wrong, or what text labels mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..csv_rows import COLUMNS_MAX, FIELD_CHARS_MAX, CsvSource
from ..rows import DataSettings, NoDataError, Rows, RowType
from .array_rows import check_range, type_of
from .file_ranges import FileRanges

#: Lines of a block, and the most blocks: what the index may take is 128 MiB.
STRIDE = 256
_BLOCKS_MAX = 1 << 24
_CHUNK_BYTES = 1 << 22
#: The longest line: a file without line ends is none of rows.
LINE_BYTES_MAX = 1 << 24


class CsvBlocks:
    """The rows of a CSV file by ranges; columns as `CsvSource` finds them.

    numbers: whether numbers are learnt. Raises NoDataError for a file without rows, DelianError
    for one that is no CSV.
    """

    def __init__(self, path: Path, settings: DataSettings, numbers: bool = False) -> None:
        self._file = FileRanges(path)
        self.path, self._whole, self._numbers = path, CsvSource(path, settings), numbers
        first = self._first_line()
        self._columns, self._width, named = self._whole.form(first)
        with self._file.opened() as file:
            self._starts, self._lines = self._indexed(file)
        self._skip = 1 if named else 0
        if self.rows < 1:
            raise NoDataError(f"{path} holds names and no examples", "append examples")
        one = self.read(0, 1)
        self.kind = type_of(one.x, one.y)

    @property
    def rows(self) -> int:
        """How many lines hold an example."""
        return self._lines - self._skip

    def version(self) -> int | None:
        """That of the file."""
        return self._file.version()

    def row_type(self) -> RowType:
        """Of a row of features."""
        return self.kind

    def sized(self, kind: RowType) -> CsvBlocks:
        """The same rows, with numbers to learn where the bundle learns numbers, else labels."""
        if kind.numbers == self._numbers:
            return self
        return CsvBlocks(self.path, self._whole.settings, kind.numbers)

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1."""
        check_range(str(self.path), start, stop, self.rows)
        first, last = start + self._skip, stop + self._skip
        block = first // STRIDE
        begin = int(self._starts[block])
        after = -(-last // STRIDE)
        end = int(self._starts[after]) if after < len(self._starts) else self._file.size
        content = self._file.read(begin, end - begin)
        skipped = first - block * STRIDE
        return self._parsed(bytes(content), skipped, last - first, begin)

    # ------------------------------------------------ reading

    def _first_line(self) -> list[str]:
        with self._file.opened() as file:
            content = self._file.read_from(file, 0, min(self._file.size, LINE_BYTES_MAX))
        try:
            text = content.decode("utf-8-sig", "ignore")
            csv.field_size_limit(FIELD_CHARS_MAX)
            for fields in csv.reader(io.StringIO(text, newline="")):
                if fields:
                    if len(fields) > COLUMNS_MAX:
                        raise DelianError(f"{self.path} has {len(fields)} columns", "choose some")
                    return fields
        except csv.Error as error:
            raise DelianError(f"{self.path} cannot be read: {error}", "write it again") from None
        raise NoDataError(f"{self.path} is empty", "it needs a line for each example")

    def _indexed(self, file: FileIO) -> tuple[NDArray[np.int64], int]:
        """Where each block begins, and how many lines there are. Empty lines count to none."""
        starts: list[NDArray[np.int64]] = []
        lines, quoted, at, line_start = 0, False, 0, 0
        while at < self._file.size:
            size = min(_CHUNK_BYTES, self._file.size - at)
            piece = np.frombuffer(self._file.read_from(file, at, size), np.uint8)
            quotes = piece == ord('"')
            within = np.logical_xor.accumulate(quotes) ^ quoted if quotes.any() else None
            ends = np.flatnonzero(piece == ord("\n"))
            if within is not None:
                ends = ends[~within[ends]]
                quoted = bool(within[-1])
            elif quoted:
                ends = ends[:0]
            begins = np.concatenate([[line_start], ends[:-1] + 1 + at]) if len(ends) else ends
            if len(ends):
                lengths = ends + at - begins
                if int(lengths.max()) > LINE_BYTES_MAX:
                    raise self._no_lines()
                kept = begins[self._filled(piece, lengths, ends)]
                starts.append(kept[(-lines) % STRIDE :: STRIDE].astype(np.int64))
                lines += len(kept)
                line_start = at + int(ends[-1]) + 1
            at += size
            if at - line_start > LINE_BYTES_MAX or lines > STRIDE * _BLOCKS_MAX:
                raise self._no_lines()
        if quoted:
            raise DelianError(f"{self.path} ends within quotes", "it is cut short: write it again")
        if self._last_is_filled(file, line_start):
            if lines % STRIDE == 0:
                starts.append(np.array([line_start], np.int64))
            lines += 1
        return np.concatenate(starts) if starts else np.zeros(0, np.int64), lines

    @staticmethod
    def _filled(
        piece: NDArray[np.uint8], lengths: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which lines hold more than a carriage return."""
        bare = (lengths == 1) & (piece[np.maximum(ends - 1, 0)] == ord("\r"))
        filled: NDArray[np.bool_] = (lengths > 0) & ~bare
        return filled

    def _last_is_filled(self, file: FileIO, begin: int) -> bool:
        """Whether there is a line after the last line end."""
        rest = self._file.read_from(file, begin, self._file.size - begin)
        return bool(rest.strip())

    def _no_lines(self) -> DelianError:
        return DelianError(
            f"{self.path} has a line of more than {LINE_BYTES_MAX} bytes, or too many lines",
            "one example a line; write it again as CSV (RFC 4180), or as .npz or Parquet",
        )

    def _parsed(self, content: bytes, skipped: int, count: int, begin: int) -> Rows:
        columns = self._columns
        if content.count(b"\r") != content.count(b"\r\n"):
            raise DelianError(
                f"{self.path}: a carriage return without a line feed near byte {begin}",
                "end lines with \\n or \\r\\n",
            )
        texts = bool(self._whole.settings.classes) and not self._numbers
        if not texts and columns.split is None and self._even(content):
            wanted = [*columns.features, columns.label]
            try:
                table = np.loadtxt(
                    io.StringIO(content.decode()),
                    np.float64,
                    delimiter=",",
                    quotechar='"',
                    comments=None,
                    usecols=wanted,
                    skiprows=skipped,
                    max_rows=count,
                    ndmin=2,
                )
            except ValueError:
                table = None
            if table is not None and len(table) == count:
                made = self._from_table(table)
                if made is not None:
                    return made
        line = int(np.searchsorted(self._starts, begin)) * STRIDE
        lines = self._numbered(content, skipped, count, line)
        return self._whole.rows_of(lines, columns, self._width, self._numbers)

    def _even(self, content: bytes) -> bool:
        """Whether lines are plain: NumPy takes longer ones, and counts empty ones otherwise."""
        if b'"' in content:
            return False
        lines = content.removesuffix(b"\n").split(b"\n")
        return all(line.count(b",") == self._width - 1 and line.strip() for line in lines)

    def _from_table(self, table: NDArray[np.float64]) -> Rows | None:
        """None: a label is no class."""
        with np.errstate(over="ignore"):
            x = table[:, :-1].astype(np.float32)
        if self._numbers:
            return Rows(x, table[:, -1].astype(np.float32))
        label = table[:, -1]
        fits = (label >= 0) & (label < 2**31) & (label == np.rint(label))
        if not fits.all():
            return None
        return Rows(x, label.astype(np.int32))

    def _numbered(
        self, content: bytes, skipped: int, count: int, line: int
    ) -> Iterator[tuple[int, list[str]]]:
        """Rows as `csv` reads them, with their numbers in the file."""
        csv.field_size_limit(FIELD_CHARS_MAX)
        try:
            reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
            filled = (fields for fields in reader if fields)
            for k, fields in enumerate(filled):
                if k >= skipped + count:
                    return
                if k >= skipped:
                    yield line + k + 1, fields
        except (csv.Error, UnicodeDecodeError) as error:
            raise DelianError(f"{self.path} cannot be read: {error}", "write it again") from None
