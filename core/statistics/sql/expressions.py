"""What a condition, an expression and a FROM clause may be: a list of allowed parts.

A question is taken for hostile: its text is parsed by sqlglot, every node of the tree has to be on
the list, and what runs is written again from the tree, never the text that came.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...common.errors import DelianError
from ...common.install_hint import install
from ..sums import StatisticsError

DIALECT = "duckdb"
#: Nodes of one expression, and tables of one question.
NODES_MAX = 200
TABLES_MAX = 6
_CHARS_MAX = 4000
#: What sqlglot underlines with.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def sqlglot() -> Any:
    """The parser. Raises DelianError where it is not installed."""
    try:
        return importlib.import_module("sqlglot")
    except ImportError:
        raise DelianError(
            "questions in SQL need sqlglot, which is not installed", install("ask")
        ) from None


@lru_cache(1)
def _allowed() -> tuple[type, ...]:
    """The nodes that an expression may be made of."""
    e = sqlglot().exp
    values = (e.Column, e.Identifier, e.Literal, e.Boolean, e.Null, e.Paren, e.Tuple)
    logic = (e.And, e.Or, e.Not, e.Case, e.If, e.Coalesce, e.Nullif)
    comparisons = (e.EQ, e.NEQ, e.GT, e.GTE, e.LT, e.LTE, e.In, e.Between, e.Is, e.Like, e.ILike)
    sums = (e.Add, e.Sub, e.Mul, e.Div, e.IntDiv, e.Mod, e.Neg)
    functions = (e.Abs, e.Floor, e.Ceil, e.Round, e.Sqrt, e.Ln, e.Log, e.Exp, e.Pow, e.Sign)
    least = (e.Greatest, e.Least)
    texts = (e.Lower, e.Upper, e.Trim, e.Length, e.Substring, e.Concat, e.DPipe)
    dates = (e.Extract, e.Year, e.Month, e.Day, e.DateDiff, e.Var, e.TsOrDsToDate)
    types = (e.Cast, e.TryCast, e.DataType)
    return (
        *values,
        *logic,
        *comparisons,
        *sums,
        *functions,
        *least,
        *texts,
        *dates,
        *types,
    )


@lru_cache(1)
def _types() -> frozenset[str]:
    return frozenset(("BIGINT", "INT", "DOUBLE", "FLOAT", "BOOLEAN", "VARCHAR", "TEXT", "DATE"))


@dataclass(frozen=True)
class Expression:
    """An expression that was checked."""

    sql: str
    """As it is run, in duckdb's dialect."""
    columns: frozenset[tuple[str, str]]
    """The columns in it: the table's name or alias, "" where none is given; and the column's."""


@dataclass(frozen=True)
class From:
    """A FROM clause that was checked."""

    sql: str
    tables: Mapping[str, str]
    """By the name or alias that expressions use: the table."""
    first: str
    """The name of the first table, whose rows are counted."""
    columns: frozenset[tuple[str, str]]
    """The columns that joins compare."""


def expression(text: str, what: str = "an expression") -> Expression:
    """A condition or an expression. Raises StatisticsError for what is not allowed."""
    if not text.strip() or len(text) > _CHARS_MAX:
        raise StatisticsError(f"{what} of {len(text)} characters", f"1 to {_CHARS_MAX}")
    exp = sqlglot().exp
    statements = _parsed(f"SELECT {text}", what)
    alone = isinstance(statements, exp.Select) and len(statements.expressions) == 1
    if not alone or any(v for k, v in statements.args.items() if k != "expressions" and v):
        raise StatisticsError(f"{what} is a single expression: {_short(text)}")
    return checked(statements.expressions[0], what)


def checked(node: Any, what: str = "an expression") -> Expression:
    """A parsed expression, every part of which is on the list. Raises StatisticsError."""
    exp, allowed = sqlglot().exp, _allowed()
    columns = set()
    for count, part in enumerate(node.walk()):
        if count >= NODES_MAX:
            raise StatisticsError(f"{what} has more than {NODES_MAX} parts")
        if type(part) not in allowed:
            raise StatisticsError(
                f"{what} has {_kind(part)}: {_short(part.sql(DIALECT, comments=False))}",
                "comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, CASE, arithmetic, CAST, ABS, FLOOR,"
                " CEIL, ROUND, SQRT, LN, EXP, POW, LEAST, GREATEST, COALESCE, LOWER, UPPER, TRIM,"
                " LENGTH, SUBSTRING, YEAR, MONTH, DAY",
            )
        if isinstance(part, exp.Column):
            if part.args.get("db") or part.args.get("catalog"):
                raise StatisticsError(
                    f"{what} names a schema: {_short(part.sql(DIALECT, comments=False))}"
                )
            columns.add((part.table, part.name))
        if isinstance(part, exp.DataType) and part.sql(DIALECT).upper() not in _types():
            raise StatisticsError(
                f"{what} casts to {_short(part.sql(DIALECT, comments=False))}", "to a plain type"
            )
    return Expression(node.sql(DIALECT, comments=False), frozenset(columns))


def from_clause(text: str) -> From:
    """The tables of a question: one, or joins with ON. Raises StatisticsError."""
    if not text.strip() or len(text) > _CHARS_MAX:
        raise StatisticsError(f"a FROM clause of {len(text)} characters", f"1 to {_CHARS_MAX}")
    statement = _parsed(f"SELECT 1 FROM {text}", "the FROM clause")
    used = {k for k, v in statement.args.items() if v}
    if not isinstance(statement, sqlglot().exp.Select) or used - {"expressions", "from_", "joins"}:
        raise StatisticsError(f"the FROM clause is tables and joins alone: {_short(text)}")
    return tables_of(statement)


def tables_of(statement: Any) -> From:
    """The tables of a parsed SELECT. Raises StatisticsError."""
    exp = sqlglot().exp
    origin = statement.args.get("from_") or statement.args.get("from")
    if origin is None:
        raise StatisticsError("a question without FROM", "name a table: ... FROM patients")
    joins = statement.args.get("joins") or []
    tables: dict[str, str] = {}
    columns: set[tuple[str, str]] = set()
    parts = []
    for join in (None, *joins):
        table = origin.this if join is None else join.this
        name = _table(table, tables)
        written = f'"{tables[name]}"' + (f' AS "{name}"' if name != tables[name] else "")
        if join is None:
            parts.append(written)
            continue
        side, on = (join.args.get("side") or "").upper(), join.args.get("on")
        odd = join.args.get("method") or join.args.get("using") or on is None
        if odd or side not in ("", "LEFT") or (join.kind or "").upper() not in ("", "INNER"):
            raise StatisticsError(
                f"a join that is not on the list: {_short(join.sql(DIALECT))}",
                "JOIN table ON condition, or LEFT JOIN",
            )
        found = checked(on, "a join's condition")
        if not any(isinstance(part, exp.Column) for part in on.walk()):
            raise StatisticsError("a join's condition compares no columns")
        columns |= found.columns
        parts.append(f"{side} JOIN {written} ON {found.sql}".strip())
    return From(" ".join(parts), tables, next(iter(tables)), frozenset(columns))


def _table(table: Any, tables: dict[str, str]) -> str:
    """Adds a table, and gives the name that expressions use."""
    exp = sqlglot().exp
    plain = isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier)
    if not plain or table.args.get("db") or table.args.get("catalog"):
        raise StatisticsError(
            f"FROM takes names of tables: {_short(table.sql(DIALECT))}", "those that sites offer"
        )
    extra = {k for k, v in table.args.items() if v} - {"this", "alias"}
    if extra or (table.args.get("alias") and table.args["alias"].args.get("columns")):
        raise StatisticsError(f"a table with {', '.join(sorted(extra)) or 'renamed columns'}")
    name = table.alias or table.name
    if name in tables or len(tables) >= TABLES_MAX:
        raise StatisticsError(
            f"`{_short(name)}` is named twice, or more than {TABLES_MAX} tables are joined",
            "give each its own alias",
        )
    tables[name] = table.name
    return str(name)


def _parsed(text: str, what: str) -> Any:
    if not all(c.isprintable() or c.isspace() for c in text):
        raise StatisticsError(f"{what} has control characters")
    found = sqlglot()
    try:
        statements = found.parse(text, read=DIALECT)
    except (found.errors.SqlglotError, RecursionError) as error:
        raise StatisticsError(
            f"{what} cannot be read: {_short(str(error))}", "write it as SQL has it"
        ) from None
    if len(statements) != 1 or statements[0] is None:
        raise StatisticsError(f"{what} is one statement, and no more")
    return statements[0]


def parsed_select(text: str) -> Any:
    """A SELECT statement's tree. Raises StatisticsError for another statement."""
    if len(text) > _CHARS_MAX:
        raise StatisticsError(f"a question of {len(text)} characters", f"at most {_CHARS_MAX}")
    statement = _parsed(text, "the question")
    if not isinstance(statement, sqlglot().exp.Select):
        raise StatisticsError(
            f"{type(statement).__name__.upper()} is no question",
            "SELECT aggregates FROM table [WHERE] [GROUP BY]",
        )
    return statement


def _kind(node: Any) -> str:
    exp = sqlglot().exp
    if isinstance(node, exp.Anonymous):
        return f"the function {_short(str(node.this))}, which is not allowed"
    return f"{type(node).__name__.upper()}, which is not allowed"


def _short(text: str) -> str:
    clean = _COLOURS.sub("", text)
    clean = " ".join("".join(c if c.isprintable() else " " for c in clean).split())
    return clean if len(clean) <= 80 else clean[:77] + "..."


def names_of(expressions: Iterable[Expression]) -> frozenset[tuple[str, str]]:
    """All columns of some expressions."""
    return frozenset(name for each in expressions for name in each.columns)
