"""A file as columns, by its name: CSV, TSV, JSON (also gzipped), Parquet and Arrow."""

from __future__ import annotations

from pathlib import Path

from ....common.errors import DelianError
from . import delimited, json_tables
from .arrow_tables import ARROW, PARQUET, read_parquet, read_streams
from .columns import Column

#: Text files, which may be gzipped.
TEXTS = (*delimited.SUFFIXES, *json_tables.SUFFIXES)
SUFFIXES = (*TEXTS, *PARQUET, *ARROW, *(f"{each}.gz" for each in TEXTS))


def table_suffix(path: Path) -> str:
    """The suffix of a table's file, with `.gz` where it has that; empty: it is no table's."""
    name = path.name.lower()
    return next((each for each in sorted(SUFFIXES, key=len)[::-1] if name.endswith(each)), "")


def read_columns(path: Path) -> dict[str, Column]:
    """The columns of a file, by name. Raises DelianError for one that cannot be read."""
    suffix = table_suffix(path).removesuffix(".gz")
    if suffix in (*PARQUET, *ARROW):
        found = read_parquet([path]) if suffix in PARQUET else read_streams([path])
        if not found.columns:
            why = "; ".join(found.left_out) or "no columns of numbers or text"
            raise DelianError(f"{path}: {why}", "give columns of numbers or text")
        return found.columns
    if suffix in json_tables.SUFFIXES:
        return json_tables.read_json(path)
    return delimited.read_delimited(path).columns()
