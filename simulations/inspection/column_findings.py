"""What is wrong with a table's columns: labels given away, missing values, columns of no use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.common.nouns import counted
from ...core.learning.data.tabular.columns import Column, as_texts, missing
from ...core.learning.data.tabular.dates import days_of, order_of
from ...core.learning.data.tabular.encoding import numbers_of
from ...core.learning.data.tabular.table_rows import TableRows
from .column_facts import ColumnFacts
from .finding import Finding, listed

#: Rows below which a column that fits the labels may do so by luck.
_ROWS_LEAST = 20
#: Share of the labels that a column gives away.
_ALL = 0.99
#: The most frequent label's share, above which most columns fit it up to `_ALL`, and the rows of
#: other labels that a column then has to separate without a fault.
_ONE_SIDED, _OTHERS = 0.95, 5
#: A correlation with what is learnt that only a copy has.
_COPY = 0.99999
#: Share of missing values that is much.
_MUCH = 0.5
_DROP = "leave it out: --set 'data.columns=[...]', or delete it from the file"


def findings_of(rows: TableRows, facts: Sequence[ColumnFacts]) -> Iterator[Finding]:
    """What is wrong with the columns. rows: as they are learnt; facts: of the whole table."""
    used = {each.column: each for each in facts if each.role == "feature"}
    for name, each in used.items():
        values = rows.columns.get(name)
        if values is not None and rows.windows is None and len(rows) >= _ROWS_LEAST:
            yield from _leaks(name, each.kind, values, rows)
    yield from _useless(facts)
    for each in used.values():
        share = each.missing / max(each.rows + each.missing, 1)
        if share > _MUCH:
            yield Finding(
                "warning",
                "missing",
                f"{100 * share:.0f}% of `{each.column}` is missing",
                "whether a value is missing may be all that is learnt of it",
                each.column,
            )
    yield from _odd(rows.columns, used)


def _useless(facts: Sequence[ColumnFacts]) -> Iterator[Finding]:
    why = {
        "constant": ("one value", ""),
        "empty": ("no value", ""),
        "id": ("another text in each row, such as an id", ""),
        "values": (
            "many texts of few rows each",
            "group their values, such as the first letters of a code, to make them features",
        ),
    }
    for kind, (words, hint) in why.items():
        names = [e.column for e in facts if e.kind == kind and e.role == "left out"]
        if names:
            has = "has" if len(names) == 1 else "have"
            yield Finding("note", kind, f"{listed(names)} {has} {words}: left out", hint, names[0])


def _odd(columns: Mapping[str, Column], used: Mapping[str, ColumnFacts]) -> Iterator[Finding]:
    """Values of columns of numbers and dates that are none."""
    for name, each in used.items():
        values = columns.get(name)
        if values is None or values.dtype.kind == "f":
            continue
        known = values[~missing(values)]
        if each.kind == "category":
            yield from _numbers_among(name, known)
        if each.kind not in ("number", "date"):
            continue
        read = days_of(known, order_of(known)) if each.kind == "date" else numbers_of(known)
        odd = np.unique(known[np.isnan(read)]).tolist()
        if odd:
            yield Finding(
                "warning",
                "mixed",
                f"`{name}` is a column of {each.kind}s, and"
                f" {counted(int(np.isnan(read).sum()), 'value is', 'values are')} none:"
                f" {listed([str(v) for v in odd])}",
                "they count as missing: write nothing in their place, or mend them",
                name,
            )


def _numbers_among(name: str, known: Column) -> Iterator[Finding]:
    """A column of categories whose values are numbers, most of them."""
    odd = np.isnan(numbers_of(known))
    if not odd.any() or odd.mean() >= _MUCH:
        return
    words = [str(v) for v in np.unique(known[odd]).tolist()]
    yield Finding(
        "warning",
        "mixed",
        f"`{name}` mixes numbers with text: {listed(words)} in {int(odd.sum())} of"
        f" {counted(len(known), 'row', 'rows')}, so its numbers are categories",
        "where it is meant as numbers, write nothing in their place, or mend them",
        name,
    )


def _leaks(name: str, kind: str, values: Column, rows: TableRows) -> Iterator[Finding]:
    """Whether a column alone says what is learnt."""
    numbers = numbers_of(values) if kind == "number" else None
    if rows.is_regression:
        y = rows.y.reshape(len(rows), -1)[:, 0].astype(np.float64)
        if numbers is not None and _is_copy(numbers, y):
            yield Finding(
                "wrong",
                "leak",
                f"`{name}` is `{rows.target_name}` in other units: it gives away what is learnt",
                _DROP,
                name,
            )
        return
    if len(rows.y) - np.bincount(rows.y).max() < _OTHERS:
        return
    target = f"the label `{rows.target_name}`"
    if numbers is not None and _separates(numbers, rows.y):
        yield Finding(
            "wrong",
            "leak",
            f"`{name}` alone separates the labels: each has a range of its own. It gives away"
            f" {target}, unless labels were made of it",
            _DROP,
            name,
        )
    elif kind in ("category", "number", "date") and _determines(as_texts(values), rows.y):
        yield Finding(
            "wrong",
            "leak",
            f"each value of `{name}` has one label: it gives away {target}",
            _DROP,
            name,
        )


def _is_copy(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    known = ~np.isnan(x)
    if known.sum() < _ROWS_LEAST or np.ptp(x[known]) == 0 or np.ptp(y[known]) == 0:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(abs(np.corrcoef(x[known], y[known])[0, 1]) > _COPY)


def _separates(x: NDArray[np.float64], y: NDArray[np.int32]) -> bool:
    """Whether rows in order of x have each label in one piece."""
    known = ~np.isnan(x)
    x, y = x[known], y[known]
    labels = len(np.unique(y))
    if len(x) < _ROWS_LEAST or labels < 2:
        return False
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    changes = np.flatnonzero(np.diff(y))
    return len(changes) == labels - 1 and bool((x[changes] < x[changes + 1]).all())


def _determines(texts: Column, y: NDArray[np.int32]) -> bool:
    """Whether the rows of each value have one label, for values that several rows have."""
    found, index, counts = np.unique(texts, return_inverse=True, return_counts=True)
    several = counts[index] > 1
    if several.sum() < max(_ROWS_LEAST, len(y) // 2) or len(found) < 2:
        return False
    labels = int(y.max()) + 1
    table = np.bincount(index[several] * labels + y[several], minlength=len(found) * labels)
    best = int(table.reshape(-1, labels).max(axis=1).sum())
    rows, most = int(several.sum()), int(np.bincount(y[several]).max())
    if most > _ONE_SIDED * rows:
        return best == rows and best - most >= _OTHERS
    return best >= _ALL * rows and best - most >= _ROWS_LEAST // 2
