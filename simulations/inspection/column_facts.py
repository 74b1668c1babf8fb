"""The columns of a table: what each is, what is in it, and what it is used for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...core.learning.data.tabular.columns import Column, as_texts, missing, written
from ...core.learning.data.tabular.dates import date_text, days_of, order_of
from ...core.learning.data.tabular.encoding import numbers_of

#: Values that are shown of a column of categories, and characters of each.
_SHOWN = 6
_CHARS = 24


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column."""

    column: str
    kind: str
    """number, category, date, text, id, constant, empty or values (many, each of few rows)."""
    role: str
    """target, device, time, feature, or `left out`."""
    rows: int
    """Rows with a value."""
    missing: int
    """Rows without one."""
    distinct: int
    """Different values."""
    low: str = ""
    """Of numbers and dates the least, as text."""
    high: str = ""
    """The largest."""
    values: tuple[tuple[str, int], ...] = ()
    """Of other columns the most frequent values, with the rows of each."""
    features: int = 0
    """Features that it becomes."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "values": [list(each) for each in self.values]}

    @property
    def content(self) -> str:
        """What is in it, in words."""
        if self.low:
            return f"{self.low} to {self.high}"
        shown = [f"{text[:_CHARS] or '(empty)'} {rows}" for text, rows in self.values]
        more = self.distinct - len(shown)
        return ", ".join(shown) + (f", {more:,} more" if more > 0 and shown else "")


def facts_of(
    columns: Mapping[str, Column], roles: Mapping[str, str], preparation: Mapping[str, Any]
) -> list[ColumnFacts]:
    """Facts of all columns, in their order.

    Args:
        columns: of the whole table.
        roles: by column, `target`, `device` or `time`; others are features where they become some.
        preparation: as the data's card has it.
    """
    prepared = {each["column"]: each for each in preparation.get("columns", ())}
    return [
        _facts(name, values, roles.get(name, ""), prepared.get(name, {}))
        for name, values in columns.items()
    ]


def _facts(name: str, values: Column, role: str, known: Mapping[str, Any]) -> ColumnFacts:
    kind = known.get("kind") or _kind(values)
    features = int(known.get("features", 0))
    absent = missing(values)
    here = values[~absent]
    found, counts = np.unique(here, return_counts=True)
    role = role or ("feature" if features else "left out")
    plain = ColumnFacts(
        name, kind, role, len(here), int(absent.sum()), len(found), features=features
    )
    if kind in ("number", "date") and len(here):
        dates = as_texts(here)
        numbers = days_of(dates, order_of(dates)) if kind == "date" else numbers_of(here)
        numbers = numbers[~np.isnan(numbers)]
        if len(numbers):
            ends = [float(numbers.min()), float(numbers.max())]
            low, high = (date_text(v) if kind == "date" else f"{v:.6g}" for v in ends)
            return _replaced(plain, low=low, high=high)
    order = np.argsort(-counts, kind="stable")[:_SHOWN]
    if kind in ("text", "id", "values"):
        order = order[:2]
    texts = [written(float(v)) if here.dtype.kind == "f" else str(v) for v in found[order]]
    return _replaced(plain, values=tuple(zip(texts, counts[order].tolist(), strict=True)))


def _replaced(facts: ColumnFacts, **changes: Any) -> ColumnFacts:
    from dataclasses import replace

    return replace(facts, **changes)


def _kind(values: Column) -> str:
    """What a column is that becomes no feature: the target, or that of devices or times."""
    if missing(values).all():
        return "empty"
    if values.dtype.kind == "f":
        return "number"
    known = values[~missing(values)]
    return "date" if not np.isnan(days_of(known, order_of(known))).any() else "category"
