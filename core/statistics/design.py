"""The design matrix of a site's rows: numbers, categories, products; columns named as patsy does.

A term is a product of factors. A categorical factor of k categories has k - 1 columns (treatment
coding; the first category is the reference) where the model has its lower-order terms already, and
k where it has not, so that no column is redundant. The rule is patsy's: of all subsets of a term's
categorical factors, those that earlier terms span are left out, and the others are merged into as
few products as possible.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .few_rows import check_column
from .formula import FACTORS_MAX, TERMS_MAX
from .site_table import Chosen, Floats, Table
from .sums import StatisticsError

#: Columns of a design matrix, and its numbers at a site (1 GiB).
COLUMNS_MAX = 512
CELLS_MAX = 1 << 27
INTERCEPT = "Intercept"

_CATEGORICAL = re.compile(r"C\((.+)\)")

#: A product: its factors, each with whether all categories have a column.
_Coding = tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class CompleteRows:
    """The rows of a site in which no column that is used is missing."""

    matrix: Floats
    """f64[n, columns]: the design matrix of these rows."""
    others: Mapping[str, Floats]
    """f64[n] each: the further columns of numbers, such as the outcome."""
    kept: Chosen
    """bool[rows]: which rows of the table they are."""
    missing: int
    """Rows in which a value is missing."""
    unlisted: int
    """Rows with a category that is not listed; none of their values is missing."""

    @property
    def rows(self) -> int:
        """Complete rows."""
        return len(self.matrix)


@dataclass(frozen=True)
class Design:
    """What a design matrix is made of. Raises StatisticsError where that makes no sense."""

    predictors: tuple[str, ...]
    """Terms: `age`, `C(sex)`, `age:C(sex)`. A column in `categories` is categorical without C()."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By column: its categories as text; the first is the reference."""
    intercept: bool = True
    """Whether there is a column of ones, the first."""

    def __post_init__(self) -> None:
        if len(self.predictors) > TERMS_MAX:
            raise StatisticsError(f"{len(self.predictors)} predictors", f"at most {TERMS_MAX}")
        for name, listed in self.categories.items():
            if isinstance(listed, str) or not all(isinstance(c, str) and c for c in listed):
                raise StatisticsError(f"the categories of `{name}` are not a list of texts")
            if len(set(listed)) < len(listed) or len(listed) < 2:
                raise StatisticsError(
                    f"`{name}` has {len(listed)} categories, {len(set(listed))} of them different",
                    "list at least two, each once",
                )
        for term in self.predictors:
            if not isinstance(term, str) or not all(self._factors(term)):
                raise StatisticsError(f"a predictor `{term}` names no column")
            if len(self._factors(term)) > FACTORS_MAX:
                raise StatisticsError(f"`{term}` is a product of more than {FACTORS_MAX} columns")
            for factor in self._factors(term):
                if _CATEGORICAL.fullmatch(factor) and self.column(factor) not in self.categories:
                    raise StatisticsError(
                        f"the categories of `{self.column(factor)}` are not given",
                        "list them, the reference first",
                    )
        width = sum(self._width(coding) for _, coding in self._codings) + self.intercept
        if width > COLUMNS_MAX:
            raise StatisticsError(f"a design of {width} columns", f"at most {COLUMNS_MAX}")

    @staticmethod
    def _factors(term: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.strip() for part in term.split(":")))

    @staticmethod
    def column(factor: str) -> str:
        """The table's column of a factor: `C(sex)` is of `sex`."""
        found = _CATEGORICAL.fullmatch(factor)
        return found[1].strip() if found else factor

    def _is_text(self, factor: str) -> bool:
        return self.column(factor) in self.categories

    def columns(self) -> tuple[str, ...]:
        """All columns of the table that it reads, each once."""
        factors = [f for term in self.predictors for f in self._factors(term)]
        return tuple(dict.fromkeys(map(self.column, factors)))

    @cached_property
    def _codings(self) -> tuple[tuple[tuple[str, ...], _Coding], ...]:
        """The products, in patsy's order: (numeric factors, categorical factors) of each."""
        buckets: dict[frozenset[str], list[tuple[str, ...]]] = {frozenset(): []}
        for term in dict.fromkeys(self._factors(t) for t in self.predictors):
            numeric = frozenset(f for f in term if not self._is_text(f))
            buckets.setdefault(numeric, []).append(term)
        out: list[tuple[tuple[str, ...], _Coding]] = []
        for numeric, terms in buckets.items():
            used = {frozenset[str]()} if self.intercept and not numeric else set()
            seen: set[frozenset[str]] = set()
            for term in sorted(terms, key=len):
                if frozenset(term) in seen:
                    continue
                seen.add(frozenset(term))
                texts = [f for f in term if f not in numeric]
                out += [(term, coding) for coding in _codings_of(texts, used)]
        return tuple(out)

    def _width(self, coding: _Coding) -> int:
        return math.prod(len(self.categories[self.column(f)]) - (not a) for f, a in coding)

    def _parts(self, term: tuple[str, ...], coding: _Coding) -> list[list[tuple[str, int]]]:
        """For each factor of a product its columns: (name, place of the category; -1: numbers)."""
        whole = dict(coding)
        parts: list[list[tuple[str, int]]] = []
        for factor in term:
            if not self._is_text(factor):
                parts.append([(factor, -1)])
            elif factor in whole:
                listed = self.categories[self.column(factor)]
                mark = "" if whole[factor] else "T."
                first = 0 if whole[factor] else 1
                names = [f"{factor}[{mark}{c}]" for c in listed]
                parts.append([(name, k) for k, name in enumerate(names)][first:])
        return parts

    @cached_property
    def _plan(self) -> tuple[tuple[tuple[str, int, str], ...], ...]:
        """For each column its factors: (column of the table, category or -1, printed name)."""
        plan: list[tuple[tuple[str, int, str], ...]] = [()] if self.intercept else []
        for term, coding in self._codings:
            present = [f for f in term if not self._is_text(f) or f in dict(coding)]
            columns = [self.column(f) for f in present]
            # The first factor's columns change fastest.
            for chosen in itertools.product(*reversed(self._parts(term, coding))):
                pairs = zip(columns, reversed(chosen), strict=True)
                plan.append(tuple((column, k, name) for column, (name, k) in pairs))
        return tuple(plan)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: `Intercept`, `age`, `C(sex)[T.m]`, `age:C(sex)[T.m]`."""
        return tuple(":".join(name for _, _, name in part) or INTERCEPT for part in self._plan)

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return len(self._plan)

    def of(self, table: Table, others: Sequence[str] = ()) -> CompleteRows:
        """The design matrix of a table's complete rows.

        Args:
            table: the site's rows.
            others: further columns of numbers that must not be missing.

        Raises:
            StatisticsError: a column is absent, is text without categories, or the matrix is too
                large.
        """
        missing = np.zeros(table.rows, np.bool_)
        unlisted = np.zeros(table.rows, np.bool_)
        values: dict[str, Floats] = {}
        codes: dict[str, npt.NDArray[np.int64]] = {}
        for name in self.columns():
            if name in self.categories:
                codes[name] = table.codes(name, self.categories[name])
                missing |= codes[name] == -1
                unlisted |= codes[name] == -2
            else:
                values[name] = table.numbers(name)
                missing |= np.isnan(values[name])
        further = {name: table.numbers(name) for name in others}
        for numbers in further.values():
            missing |= np.isnan(numbers)
        kept = ~(missing | unlisted)
        rows = int(kept.sum())
        if rows * self.width > CELLS_MAX:
            raise StatisticsError(
                f"a design matrix of more than {CELLS_MAX:,} numbers at a site",
                "use fewer predictors or categories",
            )
        matrix = np.ones((rows, self.width))
        for place, part in enumerate(self._plan):
            for column, category, _ in part:
                if category < 0:
                    matrix[:, place] *= values[column][kept]
                else:
                    matrix[:, place] *= codes[column][kept] == category
            check_column(matrix[:, place], table.floor, self.names[place])
        return CompleteRows(
            matrix,
            {name: numbers[kept] for name, numbers in further.items()},
            kept,
            int(missing.sum()),
            int((unlisted & ~missing).sum()),
        )


def _codings_of(factors: Sequence[str], used: set[frozenset[str]]) -> list[_Coding]:
    """The products that span what a term's categorical factors add to `used`, which grows."""
    subsets = [
        frozenset(chosen)
        for size in range(len(factors) + 1)
        for chosen in itertools.combinations(factors, size)
    ]
    fresh = [s for s in subsets if s not in used]
    used.update(fresh)
    # A product is a set of factors with k - 1 columns each, and a set with all k.
    products: list[tuple[frozenset[str], frozenset[str]]] = [(s, frozenset()) for s in fresh]
    while _merged(products):
        pass
    return [
        tuple((f, f in whole) for f in factors if f in reduced | whole)
        for reduced, whole in products
    ]


def _merged(products: list[tuple[frozenset[str], frozenset[str]]]) -> bool:
    """Merges two products into one, if any two can be: S and S:f- span S:f."""
    for short, long in itertools.combinations(range(len(products)), 2):
        (reduced, whole), (more, whole_too) = products[short], products[long]
        if whole == whole_too and reduced < more and len(more) == len(reduced) + 1:
            products[long] = (reduced, whole | (more - reduced))
            del products[short]
            return True
    return False
