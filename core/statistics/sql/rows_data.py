"""A site's rows for a question: the owner's files, read by duckdb, within what the owner offers.

    offered    CSV and Parquet files by table name, with the columns that may be asked about
    read       only the columns that the question names, into memory, before anything hostile runs
    run        FROM, WHERE and expressions, with no access to files, by one thread

A question about plain columns of one table, without a condition, needs no duckdb.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...common.errors import DelianError
from ...common.install_hint import install
from ...learning.data.tabular.columns import Column
from ...learning.data.tabular.table_files import read_columns
from ..request import Rows
from ..site_table import Table
from ..sums import StatisticsError
from . import expressions
from .expressions import Expression, From

#: The column that numbers the rows of each table.
ROW = "__row__"
_SQLITE = (".sqlite", ".sqlite3", ".db")


@dataclass(frozen=True, slots=True)
class Offered:
    """A table that a site's owner offers."""

    path: str = ""
    """A CSV, TSV or Parquet file; several by a pattern, as /data/visits-*.parquet; or a database of
    SQLite (.sqlite, .db) or DuckDB (.duckdb).
    """
    columns: tuple[str, ...] = ()
    """Columns that questions may read. Empty: all."""
    relation: str = ""
    """The table or view of a database. Empty: it is called as it is offered."""
    table: Table | None = None
    """Rows that are at hand, in place of a file."""


class Refused(DelianError):
    """The owner does not allow it. reason: a fixed word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, "ask the site's owner")
        self.reason = reason


@dataclass(frozen=True)
class Wanted:
    """What a question reads of the offered tables."""

    origin: From
    where: Expression | None
    computed: Mapping[str, Expression]
    """By the name that the question has for it."""
    by_table: Mapping[str, tuple[str, ...]]
    """The columns of each table that are read, by the table's name."""

    @property
    def is_plain(self) -> bool:
        """Whether it is columns of one table as they are."""
        one = len(self.origin.tables) == 1 and self.where is None
        return one and not self.computed


def wanted(rows: Rows, columns: Sequence[str], offered: Mapping[str, Offered]) -> Wanted:
    """What is read, after the owner's rules. Raises Refused and StatisticsError.

    columns: those that the question names.
    """
    if not offered:
        raise Refused("tables", "the site offers no table to questions")
    origin = _origin(rows.table, offered)
    where = expressions.expression(rows.where, "the condition") if rows.where else None
    computed = {
        name: expressions.expression(text, f"column `{name[:40]}`")
        for name, text in rows.columns.items()
    }
    plain = {("", name) for name in columns if name not in computed}
    named = plain | expressions.names_of(computed.values()) | origin.columns
    if where is not None:
        named |= where.columns
    by_table: dict[str, set[str]] = {table: set() for table in origin.tables.values()}
    for alias, column in sorted(named):
        if alias and alias not in origin.tables:
            raise StatisticsError(f"there is no table `{alias[:40]}` in the question")
        if not alias and len(origin.tables) > 1:
            raise StatisticsError(
                f"column `{column[:40]}` is named without its table", "say table.column in joins"
            )
        table = origin.tables[alias or origin.first]
        allowed = offered[table].columns
        if allowed and column not in allowed:
            raise Refused("columns", f"column `{column[:40]}` may not be asked about")
        by_table[table].add(column)
    return Wanted(origin, where, computed, {t: tuple(sorted(c)) for t, c in by_table.items()})


def _origin(table: str, offered: Mapping[str, Offered]) -> From:
    if not table:
        if len(offered) > 1:
            raise StatisticsError("which table? Sites offer several", "name one of them")
        name = next(iter(offered))
        return From(f'"{name}"', {name: name}, name, frozenset())
    if table in offered:  # a name alone needs no parser
        return From(f'"{table}"', {table: table}, table, frozenset())
    origin = expressions.from_clause(table)
    for name in origin.tables.values():
        if name not in offered:
            raise Refused("tables", f"table `{name[:40]}` is not offered")
    return origin


@dataclass(frozen=True)
class SiteRows:
    """The rows of a question at a site."""

    table: Table
    places: npt.NDArray[np.int64]
    """For each row, the number of the first table's row that it is of, i64[rows]."""
    total: int
    """Rows of the first table."""


class Reader:
    """Reads what a question wants; `load` first, and `rows` once the process is confined."""

    def __init__(self, found: Wanted, offered: Mapping[str, Offered]) -> None:
        self.found, self.offered = found, offered
        self._plain: dict[str, Column] | None = None
        self._total = 0
        self._database: Any = None

    def load(self, bytes_max: int) -> None:
        """Reads the files, into memory. Raises DelianError for one that is not as it must be.

        bytes_max: memory for tables.
        """
        first = self.found.origin.tables[self.found.origin.first]
        path, given = Path(self.offered[first].path), self.offered[first].table
        is_text = path.suffix in (".csv", ".tsv") and path.is_file()
        if self.found.is_plain and (is_text or given is not None):
            if given is None:
                _check_size(path, bytes_max)
            columns = read_columns(path) if given is None else given.columns
            self._total = max(map(len, columns.values()), default=0)
            self._plain = {name: self._named(columns, name) for name in self.found.by_table[first]}
            return
        self._database = _opened(bytes_max)
        for table, columns_read in self.found.by_table.items():
            self._load_table(table, columns_read)
        self._database.execute("SET enable_external_access=false")
        self._database.execute("SET lock_configuration=true")

    def _named(self, columns: Mapping[str, Column], name: str) -> Column:
        if name not in columns:
            raise StatisticsError(
                f"a site has no column `{name}`", "name a column that all sites have"
            )
        return columns[name]

    def _load_table(self, table: str, columns: Sequence[str]) -> None:
        path, given = self.offered[table].path, self.offered[table].table
        if Path(path).suffix in _SQLITE:
            given = Table(_of_sqlite(path, self.offered[table].relation or table, columns))
        if given is not None:
            self._load_given(table, given, columns)
            return
        if Path(path).suffix == ".duckdb":
            self._load_attached(table, path, columns)
            return
        reads = "read_parquet" if Path(path).suffix in (".parquet", ".pq") else "read_csv"
        chosen = "".join(f", {_quoted(c)}" for c in columns)
        try:
            self._database.execute(
                f"CREATE TABLE {_quoted(table)} AS SELECT row_number() OVER () - 1 AS {ROW}{chosen}"
                f" FROM {reads}(?)",
                [path],
            )
        except self._fault as error:
            lacking = [c for c in columns if not self._has(path, reads, c)]
            if lacking:
                raise StatisticsError(
                    f"a site has no column `{lacking[0][:40]}`", "name a column that all sites have"
                ) from None
            raise StatisticsError(
                f"a site's table cannot be read: {type(error).__name__}"
            ) from error

    def _load_attached(self, table: str, path: str, columns: Sequence[str]) -> None:
        """Rows of a database of DuckDB, which is opened to be read alone."""
        relation = self.offered[table].relation or table
        chosen = "".join(f", {_quoted(c)}" for c in columns)
        literal = path.replace("'", "''")
        try:
            self._database.execute(f"ATTACH '{literal}' AS source (READ_ONLY)")
            self._database.execute(
                f"CREATE TABLE {_quoted(table)} AS SELECT row_number() OVER () - 1 AS {ROW}{chosen}"
                f" FROM source.{_quoted(relation)}"
            )
            self._database.execute("DETACH source")
        except self._fault as error:
            raise StatisticsError(
                f"a site's database cannot be read: {type(error).__name__}",
                "name tables and columns that all sites have",
            ) from None

    def _load_given(self, table: str, given: Table, columns: Sequence[str]) -> None:
        """Rows that are at hand, with NULL for what is missing."""
        arrays: dict[str, Any] = {ROW: np.arange(given.rows)}
        picked = [ROW]
        for place, name in enumerate(columns):
            values = self._named(given.columns, name)
            number = values.dtype.kind == "f"
            arrays[f"c{place}"] = values if number else values.astype(object)
            missing = f"isnan(c{place})" if number else f"c{place} = ''"
            picked.append(f"CASE WHEN {missing} THEN NULL ELSE c{place} END AS {_quoted(name)}")
        self._database.register("given", arrays)
        self._database.execute(
            f"CREATE TABLE {_quoted(table)} AS SELECT {', '.join(picked)} FROM given"
        )
        self._database.unregister("given")

    def _has(self, path: str, reads: str, column: str) -> bool:
        try:
            self._database.execute(f"SELECT {_quoted(column)} FROM {reads}(?) LIMIT 0", [path])
        except self._fault:
            return False
        return True

    @property
    def _fault(self) -> Any:
        return importlib.import_module("duckdb").Error

    def rows(self, columns: Sequence[str]) -> SiteRows:
        """The question's rows. Raises StatisticsError for expressions that these do not allow.

        columns: those that the question names.
        """
        if self._plain is not None:
            table = Table({name: self._plain[name] for name in columns}, self._total)
            return SiteRows(table, np.arange(table.rows), table.rows)
        origin, found = self.found.origin, self.found
        first = _quoted(origin.first)
        picked = [
            f"{found.computed[c].sql if c in found.computed else _quoted(c)} AS {_quoted(c)}"
            for c in columns
        ]
        condition = f" WHERE {found.where.sql}" if found.where is not None else ""
        query = f"SELECT {first}.{ROW} AS {ROW}, {', '.join(picked)} FROM {origin.sql}{condition}"
        query = query.replace(f"{ROW},  FROM", f"{ROW} FROM")
        try:
            made = self._database.execute(query).fetchnumpy()
            total = self._database.execute(
                f"SELECT count(*) FROM {_quoted(origin.tables[origin.first])}"
            ).fetchone()[0]
        except self._fault as error:
            raise StatisticsError(
                f"the question cannot be run at a site: {type(error).__name__}",
                "compare numbers with numbers and texts with texts, or CAST",
            ) from None
        places = np.asarray(made.pop(ROW)).astype(np.int64)
        table = Table({n: _column(v) for n, v in made.items()}, len(places))
        return SiteRows(table, places, int(total))


def _of_sqlite(path: str, relation: str, columns: Sequence[str]) -> dict[str, Column]:
    """Columns of a table or view of a database of SQLite. Raises StatisticsError."""
    import sqlite3

    chosen = ", ".join(map(_quoted, columns)) or "1"
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as database:
            known = {row[1] for row in database.execute(f"PRAGMA table_info({_quoted(relation)})")}
            lacking = [name for name in columns if name not in known]
            if lacking:  # SQLite would take a column's name for a text
                raise StatisticsError(
                    f"a site has no column `{lacking[0][:40]}`", "name a column that all sites have"
                )
            rows = database.execute(f"SELECT {chosen} FROM {_quoted(relation)}").fetchall()
    except (sqlite3.Error, ValueError) as error:
        raise StatisticsError(f"a site's database cannot be read: {type(error).__name__}") from None
    if not columns:
        return {"1": np.ones(len(rows))}
    parts = list(zip(*rows, strict=True)) or [()] * len(columns)
    return {name: _of_values(list(part)) for name, part in zip(columns, parts, strict=True)}


def _of_values(values: list[Any]) -> Column:
    """A column of values of any kind, None where missing."""
    if all(v is None or isinstance(v, int | float) for v in values):
        return np.array([np.nan if v is None else float(v) for v in values], np.float64)
    return np.array(["" if v is None else str(v) for v in values])


def _column(values: Any) -> Column:
    """A column of duckdb's, masked where values are missing."""
    missing = np.ma.getmaskarray(values)
    plain = np.ma.getdata(values)
    if plain.dtype.kind in "fiub":
        return np.where(missing, np.nan, plain.astype(np.float64))
    if plain.dtype.kind in "Mm":
        return np.where(missing, "", plain.astype(str))
    texts = ["" if gone or v is None else str(v) for v, gone in zip(plain, missing, strict=True)]
    try:
        return np.array([float(v) if v else np.nan for v in texts])
    except ValueError:
        return np.array(texts)


def _opened(bytes_max: int) -> Any:
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise DelianError(
            "tables with conditions, joins or Parquet need duckdb, which is not installed",
            install("ask"),
        ) from None
    database = duckdb.connect(":memory:", config={"threads": 1})
    database.execute(f"SET memory_limit='{max(bytes_max >> 20, 64)}MiB'")
    database.execute("SET temp_directory=''")
    database.execute("SET autoinstall_known_extensions=false")
    database.execute("SET autoload_known_extensions=false")
    return database


def _check_size(path: Path, bytes_max: int) -> None:
    size = path.stat().st_size
    if size > bytes_max:
        raise StatisticsError(
            f"a site's table is {size >> 20} MiB, and {bytes_max >> 20} MiB may be read"
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
