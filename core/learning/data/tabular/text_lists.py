"""Files with a list of texts: lines of a text file, or a column of a CSV file."""

from __future__ import annotations

from pathlib import Path

from ....common.errors import DelianError
from ..data_files import read_text
from .delimited import TABLE_BYTES_MAX, read_delimited

SUFFIXES = (".txt", ".text", ".md", ".csv", ".tsv")
#: The column of texts, in a file of several.
COLUMN = "text"
#: Characters of one text.
CHARS_MAX = 1 << 20


def read_texts(path: Path) -> list[str]:
    """The texts of a file, as they are written: spaces at their ends are kept.

    A line of a text file is a text. Of a CSV file it is a field of the column `text`, or of the
    only column. Raises DelianError for a file without texts.
    """
    if path.suffix not in (".csv", ".tsv"):
        texts = read_text(path, TABLE_BYTES_MAX).split("\n")
        texts = texts[:-1] if texts[-1] == "" else texts
        if not texts:
            raise DelianError(f"{path} is empty", "it needs a line for each text")
        return texts
    columns = read_delimited(path, CHARS_MAX).fields
    name = COLUMN if COLUMN in columns else next(iter(columns))
    if name != COLUMN and len(columns) > 1:
        raise DelianError(
            f"{path} has no column `{COLUMN}`; it has {', '.join(list(columns)[:20])}",
            f"name the column of texts `{COLUMN}`, or leave out the others",
        )
    return columns[name]
