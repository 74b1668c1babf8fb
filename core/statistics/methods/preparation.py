"""What columns are, and how they become features: kinds, means, categories, weights of words.

Nothing is decided by a row: a column is what its counts over all sites say. A column of numbers is
one in which nearly every value is a number, of dates likewise; of categories one whose frequent
values (`categories.find`) make up a part of its rows; of texts one whose values have several words;
of ids one whose values differ at each site. Constants, ids and empty columns become no features.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...learning.data.tabular.columns import as_texts
from ...learning.data.tabular.columns import missing as missing_in
from ...learning.data.tabular.dates import Order, days_of
from ...learning.data.tabular.encoding import Encoder, Kind, numbers_of
from ...learning.data.tabular.hashed_words import BUCKETS_MAX, frequencies, weights_of
from .. import categories
from ..answer import Answer, ResultTable
from ..counting.counted_steps import CountedSteps
from ..few_rows import TooFewRows, check_column
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError, Sum, Totals, counts

COLUMNS_MAX = 512
#: Share of a column's values that make it a column of numbers or dates; the others are missing.
_NEARLY_ALL = 0.95
#: Share of a column's rows that its frequent values have at least, to be categories: of several
#: words, and of others.
_FREQUENT, _SOME = 0.5, 0.1
#: Words that make a value a text.
_WORDS = 3
_SUM_BITS, _SQUARE_BITS = (120, 140), (199, 200)
_KINDS = ("known", "numbers", "dates", "dmy", "mdy", "timed", "worded", "distinct")
#: How steps name the order of dates; numbers are `_NUMBERS`.
_ORDERS: tuple[Order, ...] = ("", "dmy", "mdy")
_NUMBERS = -1


@dataclass(frozen=True)
class Found:
    """One column, by its sums."""

    column: str
    kind: str
    """number, category, date, text, id, constant, empty, or values (too many of few rows)."""
    rows: int
    """Rows with a value."""
    missing: int
    """Rows without one."""
    mean: float | None = None
    """Of numbers; of dates in days since 1970."""
    deviation: float | None = None
    """Their standard deviation."""
    levels: tuple[tuple[str, int], ...] = ()
    """Frequent values, with the rows of each."""
    odd: int = 0
    """Values of a column of numbers or dates that are none; they count as missing."""
    encoder: Encoder | None = None
    """How it becomes features; None: it does not."""


@dataclass(frozen=True)
class PreparationAnswer(Answer):
    """What columns are, and their encoders."""

    columns: tuple[Found, ...] = ()
    """In the question's order."""


@method("preparation")
@dataclass(frozen=True)
class Preparation(Question):
    """What columns are, and how they become features of a model."""

    of: tuple[str, ...]
    """The columns."""
    floor: int = 5
    """Rows that a category, or a part of missing values, has at least, in all sites together."""
    levels: int = 32
    """Values of a column that become features; the rest becomes one."""
    buckets: int = 1024
    """Features of a column of texts."""

    def __post_init__(self) -> None:
        if not 0 < len(self.of) <= COLUMNS_MAX or len(set(self.of)) < len(self.of):
            raise StatisticsError(f"{len(self.of)} columns", f"1 to {COLUMNS_MAX}, each once")
        if self.floor < 1 or not 1 <= self.levels <= categories.PREFIXES_MAX:
            raise StatisticsError(
                f"a floor of {self.floor}, and {self.levels} levels",
                f"a floor from 1, and 1 to {categories.PREFIXES_MAX} levels",
            )
        if not 1 <= self.buckets <= BUCKETS_MAX:
            raise StatisticsError(f"{self.buckets} buckets of words", f"1 to {BUCKETS_MAX}")

    def columns(self) -> tuple[str, ...]:
        return self.of

    def ask(self) -> Asking:
        steps = CountedSteps()
        found = yield from steps.through(self._ask())
        rows = max((f.rows + f.missing for f in found), default=0)
        table = ResultTable(
            "",
            ("", "kind", "rows", "missing", "mean", "std", "categories", "features"),
            tuple(
                (
                    f.column,
                    f.kind,
                    f.rows,
                    f.missing,
                    f.mean,
                    f.deviation,
                    len(f.levels) or None,
                    len(f.encoder.names()) if f.encoder else 0,
                )
                for f in found
            ),
        )
        facts = {"sites": steps.sites, "steps": steps.count, "rows": rows, "floor": self.floor}
        notes = ("sites have dropped out or come back between steps.",) if steps.changed else ()
        return PreparationAnswer("Preparation", facts, (table,), (), notes, columns=found)

    def _ask(self) -> Generator[Step, Totals, tuple[Found, ...]]:
        width = len(self.of)
        totals = yield Step("kinds", tuple(counts(name, width) for name in ("rows", *_KINDS)))
        facts = [{name: int(totals[name][i]) for name in ("rows", *_KINDS)} for i in range(width)]
        made: list[Found | None] = [None] * width
        for i, fact in enumerate(facts):
            if not fact["known"]:
                made[i] = Found(self.of[i], "empty", 0, fact["rows"])
        measured = [
            i
            for i, f in enumerate(facts)
            if made[i] is None and max(f["numbers"], _dates(f)[0]) >= _NEARLY_ALL * f["known"]
        ]
        if measured:
            for i, each in (yield from self._measured(measured, facts)).items():
                made[i] = each
        worded: list[int] = []
        for i, fact in enumerate(facts):
            if made[i] is None:
                made[i] = yield from self._of_values(i, fact)
                if made[i] is None:
                    worded.append(i)
        if worded:
            for i, each in (yield from self._texts(worded, facts)).items():
                made[i] = each
        return tuple(each for each in made if each is not None)

    def _measured(
        self, places: list[int], facts: list[dict[str, int]]
    ) -> Generator[Step, Totals, dict[int, Found]]:
        """Columns of numbers and dates: their means and deviations."""
        k = len(places)
        forms = [_form(facts[i]) for i in places]
        arrays = {"places": np.array(places, np.int64), "forms": np.array(forms, np.int64)}
        base = counts("known", k)
        first = yield Step("sums", (base, Sum("sums", (k,), *_SUM_BITS)), arrays)
        known = first["known"]
        means = first["sums"] / np.maximum(known, 1)
        second = yield Step(
            "squares", (base, Sum("squares", (k,), *_SQUARE_BITS)), {**arrays, "means": means}
        )
        spreads = np.sqrt(second["squares"] / np.maximum(second["known"], 1))
        found = {}
        for place, i in enumerate(places):
            mean, spread = float(means[place]), float(spreads[place])
            fact, rows = facts[i], int(known[place])
            # What a site left out, for few of its rows had it, is missing as well.
            absent = fact["rows"] - rows
            odd = fact["known"] - max(fact["numbers"], _dates(fact)[0])
            dated = forms[place] != _NUMBERS
            constant = spread <= 1e-12 * max(abs(mean), 1e-30)
            if rows == 0 or (constant and absent < self.floor):
                level = ((f"{mean:.6g}", rows),) if rows else ()
                out = "constant" if rows else "empty"
                found[i] = Found(self.of[i], out, rows, absent, levels=level)
                continue
            flag = absent >= self.floor
            cycles = ("year", "week", *["day"] * (fact["timed"] > 0)) if dated else ()
            order = _ORDERS[forms[place]] if dated else ""
            kind: Kind = "date" if dated else "number"
            encoder = Encoder(self.of[i], kind, mean, missing=flag, order=order, cycles=cycles)
            found[i] = Found(self.of[i], kind, rows, absent, mean, spread, (), odd, encoder)
        return found

    def _of_values(
        self, place: int, fact: Mapping[str, int]
    ) -> Generator[Step, Totals, Found | None]:
        """A column of categories, constants or ids; None: its values are texts."""
        column, known, absent = self.of[place], fact["known"], fact["rows"] - fact["known"]
        # With so many rows a category there are not more than a step has prefixes for.
        floor = max(self.floor, math.ceil(known / categories.PREFIXES_MAX))
        try:
            seen = yield from categories.find(column, floor, categories.PREFIXES_MAX)
        except StatisticsError:
            seen = categories.Found((), (), known, absent)
        levels = tuple(zip(seen.texts, seen.counts, strict=True))
        kept = levels[: self.levels]
        covered = sum(rows for _, rows in kept)
        worded = fact["worded"] > known / 2
        if len(levels) == 1 and covered == known and absent < self.floor:
            return Found(column, "constant", known, absent, levels=levels)
        if kept and covered >= (_FREQUENT if worded else _SOME) * known:
            # A value of fewer rows than the floor has no feature: all of them have one.
            other = known - covered >= self.floor
            encoder = Encoder(
                column,
                "category",
                levels=tuple(text for text, _ in kept),
                other=other,
                missing=absent >= self.floor,
            )
            return Found(column, "category", known, absent, levels=kept, encoder=encoder)
        if worded:
            return None
        kind = "id" if fact["distinct"] == known else "values"
        return Found(column, kind, known, absent, levels=kept)

    def _texts(
        self, places: list[int], facts: list[dict[str, int]]
    ) -> Generator[Step, Totals, dict[int, Found]]:
        """Columns of texts: how many have a word of each bucket."""
        found = {}
        for i in places:  # a step each: many buckets of many columns are no step
            sums = (counts("known"), counts("documents", self.buckets))
            totals = yield Step("words", sums, {"places": np.array([i], np.int64)})
            rows = int(totals.number("known"))
            weights = weights_of(totals["documents"].astype(np.int64), rows)
            encoder = Encoder(self.of[i], "text", weights=tuple(map(float, weights)))
            absent = facts[i]["rows"] - facts[i]["known"]
            found[i] = Found(self.of[i], "text", facts[i]["known"], absent, encoder=encoder)
        return found

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if categories.is_step(step):
            return categories.measure(table, step, self.of, kept)
        if step.name == "kinds":
            made = [_counts_of(table, name) for name in self.of]
            return {name: np.array([each[name] for each in made]) for name in ("rows", *_KINDS)}
        places = step.integers("places", -1)
        if not len(places) or places.min() < 0 or places.max() >= len(self.of):
            raise StatisticsError("the step is about a column that the question does not name")
        if step.name == "words":
            return self._words(table, self.of[int(places[0])])
        forms = step.integers("forms", len(places))
        if forms.min() < _NUMBERS or forms.max() >= len(_ORDERS):
            raise StatisticsError("the step has a form of numbers that there is not")
        columns = [
            _numbers(table, self.of[i], form)
            for i, form in zip(places.tolist(), forms.tolist(), strict=True)
        ]
        out: dict[str, Any] = {"known": np.array([len(values) for values in columns])}
        if step.name == "sums":
            return {**out, "sums": np.array([values.sum() for values in columns])}
        if step.name != "squares":
            raise StatisticsError("a step that this method does not have")
        means = step.floats("means", len(places))
        gone = [values - mean for values, mean in zip(columns, means, strict=True)]
        return {**out, "squares": np.array([float(each @ each) for each in gone])}

    def _words(self, table: Table, column: str) -> Mapping[str, Any]:
        values = table.texts(column)
        texts = values[values != ""].tolist()
        found = frequencies(texts, self.buckets)
        found[found < table.floor] = 0
        known = len(texts) if len(texts) >= table.floor else 0
        return {"known": np.array(known), "documents": found if known else found * 0}


def _dates(fact: Mapping[str, int]) -> tuple[int, Order]:
    """How many values are dates, and the order of those with slashes; "" where it is open."""
    if fact["dmy"] == fact["mdy"]:
        return fact["dates"], ""
    best: Order = "dmy" if fact["dmy"] > fact["mdy"] else "mdy"
    return fact[best], best


def _form(fact: Mapping[str, int]) -> int:
    """What a step calls a column: `_NUMBERS`, or a place in `_ORDERS`."""
    dates, order = _dates(fact)
    return _ORDERS.index(order) if dates > fact["numbers"] else _NUMBERS


def _numbers(table: Table, name: str, form: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The known numbers of a site's column; none where too few of its rows have them."""
    values = table.values(name)
    dated = form != _NUMBERS
    numbers = days_of(as_texts(values), _ORDERS[form]) if dated else numbers_of(values)
    if np.isinf(numbers).any():
        raise StatisticsError(f"column `{name}` has infinite values at a site")
    try:
        check_column(numbers, table.floor, name)
    except TooFewRows:
        return np.zeros(0)
    return numbers[~np.isnan(numbers)]


def _counts_of(table: Table, name: str) -> dict[str, int]:
    """What a site's values of a column are, in rows; a part below the owner's floor is none."""
    values = table.values(name)
    known = values[~missing_in(values)]
    rows = len(known)
    different, counts = np.unique(known, return_counts=True)
    if values.dtype.kind == "f":
        found = dict.fromkeys(_KINDS[1:-1], 0) | {"numbers": rows}
    else:
        days = {order: days_of(different, order) for order in _ORDERS}
        known_days = {order: ~np.isnan(each) for order, each in days.items()}
        timed = np.any([np.nan_to_num(each) % 1 != 0 for each in days.values()], axis=0)
        worded = [len(text.split(None, _WORDS)) >= _WORDS for text in different.tolist()]
        found = {
            "numbers": int(counts[~np.isnan(numbers_of(different))].sum()),
            "dates": int(counts[known_days[""]].sum()),
            "dmy": int(counts[known_days["dmy"]].sum()),
            "mdy": int(counts[known_days["mdy"]].sum()),
            "timed": int(counts[timed].sum()),
            "worded": int(counts[np.array(worded, np.bool_)].sum()),
        }
    floor = table.floor
    plain = {name: _apart(count, rows, floor) for name, count in found.items()}
    out = {"rows": table.rows, "known": _apart(rows, table.rows, floor), **plain}
    return {**out, "distinct": len(different) if out["known"] else 0}


def _apart(count: int, rows: int, floor: int) -> int:
    """A count that separates no fewer rows from the others than the floor: it is 0, or all."""
    if count < floor:
        return 0
    return rows if rows - count < floor else count
