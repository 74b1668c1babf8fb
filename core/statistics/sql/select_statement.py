"""Makes a question of a SELECT.

Aggregates, GROUP BY, WHERE and joins are for the sites; HAVING, ORDER BY and LIMIT for the answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..answer import Answer, ResultTable
from ..methods.aggregates import Aggregates
from ..request import Request, Rows
from ..sums import StatisticsError
from .expressions import DIALECT, checked, parsed_select, sqlglot, tables_of

_CLAUSES = {"expressions", "from_", "from", "joins", "where", "group", "having", "order", "limit"}


@dataclass(frozen=True)
class Selected:
    """A SELECT as a question, and how its answer is shown."""

    request: Request
    headers: tuple[str, ...] = ()
    """Names of the columns that are shown, in the order of the statement."""
    shown: tuple[str, ...] = ()
    """The answer's column of each."""
    order: tuple[tuple[str, bool], ...] = ()
    """Columns of the answer that it is sorted by, and whether from the largest down."""
    limit: int | None = None
    having: tuple[tuple[str, str, float], ...] = field(default=())
    """Conditions on the answer: a column, a comparison and a number."""

    def present(self, answer: Answer) -> Answer:
        """The answer as the statement asks for it."""
        table = answer.tables[0]
        place = {name: i for i, name in enumerate(table.columns)}
        rows = [
            row for row in table.rows if all(_holds(row[place[c]], o, v) for c, o, v in self.having)
        ]
        for name, falling in reversed(self.order):
            rows = sorted(rows, key=partial(_sortable, place=place[name]), reverse=falling)
        rows = rows if self.limit is None else rows[: self.limit]
        picked = []
        headers: list[str] = []
        for header, name in zip(self.headers, self.shown, strict=True):
            picked.append(place[name])
            headers.append(header)
            if name.startswith("avg("):  # its interval stands behind it
                picked += [place[name] + 1, place[name] + 2]
                headers += [f"{header} low", f"{header} high"]
        made = ResultTable("", tuple(headers), tuple(tuple(r[i] for i in picked) for r in rows))
        return replace(answer, title="Answer", tables=(made,))


def selected(
    text: str,
    *,
    floor: int = 5,
    categories: Mapping[str, Sequence[str]] | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
    noise: float = 0.0,
) -> Selected:
    """The question of a SELECT statement.

    Args:
        text: the statement.
        floor: rows of a group at a site, at least.
        categories: those of columns that it groups by, where they are known.
        limits: the lowest and the highest value of columns, for noise.
        noise: as in `Request`.

    Raises:
        StatisticsError: it is no question that sums can answer; it says which part is none.
    """
    statement = parsed_select(text)
    extra = sorted(k for k, v in statement.args.items() if v and k not in _CLAUSES)
    if extra:
        raise StatisticsError(
            f"a question has no {extra[0].strip('_').upper()}",
            "SELECT, FROM, JOIN, WHERE, GROUP BY, HAVING, ORDER BY and LIMIT",
        )
    origin = tables_of(statement)
    where = statement.args.get("where")
    condition = checked(where.this, "WHERE").sql if where is not None else ""
    columns = _Columns(joined=len(origin.tables) > 1)
    groups, names = _groups(statement, columns)
    measures: list[tuple[str, str]] = []
    headers, shown = [], []
    for item in statement.expressions:
        inner = item.unalias()
        key = _sql(inner)
        if key in names or (item.alias and item.alias in names):
            found = names[key] if key in names else names[item.alias]
        else:
            function, column = _measure(inner, columns)
            if (function, column) not in measures:
                measures.append((function, column))
            found = f"{function}({column})"
        headers.append(item.alias or key)
        shown.append(found)
    known = dict(zip(headers, shown, strict=True))
    having = tuple(_having(statement, columns, measures, known))
    order = tuple(_order(statement, columns, measures, known))
    if not measures:
        measures.append(("count", "*"))
    question = Aggregates(
        measures=tuple(measures),
        groups=groups,
        categories={k: tuple(map(str, v)) for k, v in (categories or {}).items()},
        floor=floor,
        limits=dict(limits or {}),
    )
    rows = Rows(_table_text(origin), condition, columns.computed)
    return Selected(
        Request(question, rows, noise),
        tuple(headers),
        tuple(shown),
        order,
        _limit(statement),
        having,
    )


class _Columns:
    """Columns of the question: plain ones by their own name, others computed."""

    def __init__(self, joined: bool) -> None:
        self.computed: dict[str, str] = {}
        self._joined = joined

    def name(self, node: Any) -> str:
        exp = sqlglot().exp
        found = checked(node, "an expression")
        if isinstance(node, exp.Column) and not node.table and not self._joined:
            return str(node.name)
        name = found.sql
        self.computed[name] = found.sql
        return name


def _groups(statement: Any, columns: _Columns) -> tuple[tuple[str, ...], dict[str, str]]:
    """The groups, and the names that SELECT may have for them."""
    exp = sqlglot().exp
    group = statement.args.get("group")
    if group is None:
        return (), {}
    odd = sorted(k for k, v in group.args.items() if v and k != "expressions")
    if odd:
        raise StatisticsError(f"GROUP BY {odd[0].upper()} is no question", "GROUP BY columns")
    aliases = {item.alias: item.unalias() for item in statement.expressions if item.alias}
    made, names = [], {}
    for item in group.expressions:
        node = item
        if isinstance(item, exp.Literal) and not item.is_string:
            place = int(item.name) - 1
            if not 0 <= place < len(statement.expressions):
                raise StatisticsError(f"GROUP BY {item.name}: there is no such column")
            node = statement.expressions[place].unalias()
        elif isinstance(item, exp.Column) and not item.table and item.name in aliases:
            node = aliases[item.name]
        name = columns.name(node)
        if name in made:
            raise StatisticsError(f"GROUP BY names `{name}` twice")
        made.append(name)
        names[_sql(node)] = name
        names[name] = name
    return tuple(made), names


def _measure(node: Any, columns: _Columns) -> tuple[str, str]:
    """An aggregate. Raises StatisticsError for what is none, or cannot be answered by sums."""
    exp = sqlglot().exp
    kinds = {
        exp.Sum: "sum",
        exp.Avg: "avg",
        exp.Variance: "var",
        exp.Stddev: "stddev",
        exp.StddevSamp: "stddev",
    }
    if isinstance(node, exp.Count):
        if isinstance(node.this, exp.Star):
            return "count", "*"
        if isinstance(node.this, exp.Distinct) or node.expressions:
            raise StatisticsError(
                "COUNT(DISTINCT) cannot be added up over sites", "GROUP BY the column, and count"
            )
        return "count", columns.name(node.this)
    if type(node) in kinds:
        if isinstance(node.this, exp.Distinct):
            raise StatisticsError("sums of DISTINCT values cannot be added up over sites")
        return kinds[type(node)], columns.name(node.this)
    if isinstance(node, exp.AggFunc):
        raise StatisticsError(
            f"{_sql(node)} is no sum of a site's rows",
            "COUNT, SUM, AVG, VARIANCE and STDDEV are; for quantiles ask `describe`",
        )
    raise StatisticsError(
        f"{_sql(node)} is neither an aggregate nor in GROUP BY",
        "rows do not leave a site: aggregate it, or group by it",
    )


def _named(
    node: Any, columns: _Columns, measures: list[tuple[str, str]], known: Mapping[str, str]
) -> str:
    """The answer's column that HAVING or ORDER BY is about."""
    exp = sqlglot().exp
    if isinstance(node, exp.Literal) and not node.is_string:
        place = int(node.name) - 1
        if 0 <= place < len(known):
            return list(known.values())[place]
    if isinstance(node, exp.Column) and node.name in known:
        return known[node.name]
    if _sql(node) in known:
        return known[_sql(node)]
    function, column = _measure(node, columns)
    if (function, column) not in measures:
        measures.append((function, column))
    return f"{function}({column})"


def _having(
    statement: Any, columns: _Columns, measures: list[tuple[str, str]], known: Mapping[str, str]
) -> list[tuple[str, str, float]]:
    exp = sqlglot().exp
    having = statement.args.get("having")
    if having is None:
        return []
    kinds = {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.EQ: "=", exp.NEQ: "<>"}
    found = []
    parts = having.this.flatten() if isinstance(having.this, exp.And) else [having.this]
    for part in parts:
        plain = type(part) in kinds and isinstance(part.expression, exp.Literal)
        if not plain or part.expression.is_string:
            raise StatisticsError(
                f"HAVING {_sql(part)}", "an aggregate compared with a number, and AND between such"
            )
        name = _named(part.this, columns, measures, known)
        found.append((name, kinds[type(part)], float(part.expression.name)))
    return found


def _order(
    statement: Any, columns: _Columns, measures: list[tuple[str, str]], known: Mapping[str, str]
) -> list[tuple[str, bool]]:
    order = statement.args.get("order")
    if order is None:
        return []
    return [
        (_named(each.this, columns, measures, known), bool(each.args.get("desc")))
        for each in order.expressions
    ]


def _limit(statement: Any) -> int | None:
    limit = statement.args.get("limit")
    if limit is None:
        return None
    try:
        return int(limit.expression.name)
    except (AttributeError, ValueError):
        raise StatisticsError("LIMIT takes a number") from None


def _table_text(origin: Any) -> str:
    """The FROM clause as it travels: a name alone where it is one."""
    plain = len(origin.tables) == 1 and origin.tables[origin.first] == origin.first
    return str(origin.first if plain else origin.sql)


def _sql(node: Any) -> str:
    return str(node.sql(DIALECT, comments=False))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "<>": operator.ne,
}


def _holds(value: Any, comparison: str, number: float) -> bool:
    if value is None or isinstance(value, str):
        return False
    return bool(_COMPARISONS[comparison](value, number))


def _sortable(row: tuple[Any, ...], place: int) -> tuple[int, float, str]:
    value = row[place]
    if value is None:
        return (2, 0.0, "")
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
