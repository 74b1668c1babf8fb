"""Steps before `batch`: each gives any of its rows by number, in any epoch.

    node.rows(numbers, epoch, key) -> columns

What depends on nothing but the number is `fixed`, and can be cached. A step that only renumbers
rows says where they are in memory (`located`), so that a gather from memory and the
function after it become one compiled program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ....common.errors import DelianError
from ..formats.array_rows import ArrayRows, gather
from ..stored_rows import StoredRows
from .row_columns import Applied, Columns, Key, Numbers, joined, selected, stacked
from .row_order import bits

#: How many items an endless repetition has.
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Located:
    """Rows that lie in arrays."""

    columns: Columns
    numbers: Numbers
    """Which rows of the arrays they are."""


class PipelineStep(Protocol):
    """A step of a pipeline."""

    @property
    def length(self) -> int:
        """How many items there are."""

    @property
    def source(self) -> StoredRows:
        """Where the rows come from."""

    def described(self) -> str:
        """The steps in words: what a place in the order is only right for."""


class RowNode(PipelineStep, Protocol):
    """A step that gives rows."""

    @property
    def fixed(self) -> bool:
        """Whether a row is the same in every epoch and for every key."""

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows."""

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """Where these rows are in memory; None: they are not, or not in one place."""


class OfSource:
    """A step after another one: of the same source."""

    before: PipelineStep

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source


class SameLength:
    """A step that gives as many items as the one before."""

    before: PipelineStep

    @property
    def length(self) -> int:
        """As before."""
        return self.before.length


@dataclass(frozen=True)
class FromSource:
    """The rows of a source as they are."""

    source: StoredRows
    fixed: bool = True

    @property
    def length(self) -> int:
        """How many rows there are."""
        return self.source.rows

    def described(self) -> str:
        """How many rows it has."""
        return f"{self.source.rows} rows"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows."""
        found = gather(self.source, numbers)
        return found.x, found.y

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """The arrays of a source that has some."""
        if not isinstance(self.source, ArrayRows):
            return None
        return Located((self.source.all.x, self.source.all.y), numbers)


@dataclass(frozen=True)
class RowPart(OfSource):
    """Consecutive rows: a shard, or the first ones."""

    before: RowNode
    start: int
    length: int

    @property
    def fixed(self) -> bool:
        """As before: a fixed row has no epoch."""
        return self.before.fixed

    def described(self) -> str:
        """Which rows."""
        return f"{self.before.described()}, {self.start}+{self.length}"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows."""
        return self.before.rows(numbers + self.start, epoch, key)

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """Rows further on."""
        return self.before.located(numbers + self.start, epoch, key)


@dataclass(frozen=True)
class Repeated(OfSource):
    """The rows again and again, each time in another epoch."""

    before: RowNode
    times: int

    @property
    def fixed(self) -> bool:
        """As before: a fixed row has no epoch."""
        return self.before.fixed

    @property
    def length(self) -> int:
        """How many rows there are in all."""
        return min(ENDLESS, self.before.length * self.times)

    def described(self) -> str:
        """How often."""
        return f"{self.before.described()}, {self.times} times"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows, from the epochs that they are in."""
        turns, within = np.divmod(numbers, self.before.length)
        first = int(turns[0])
        if (turns == first).all():
            return self.before.rows(within, epoch * self.times + first, key)
        order = np.argsort(turns, kind="stable")
        parts = []
        for places in np.split(order, np.flatnonzero(np.diff(turns[order])) + 1):
            turn = epoch * self.times + int(turns[places[0]])
            parts.append(self.before.rows(within[places], turn, key))
        return selected(joined(parts), np.argsort(order, kind="stable"))

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """Where they are all in one epoch."""
        turns, within = np.divmod(numbers, self.before.length)
        first = int(turns[0])
        if not (turns == first).all():
            return None
        return self.before.located(within, epoch * self.times + first, key)


@dataclass(frozen=True)
class RowMapped(OfSource, SameLength):
    """A function of a row's values."""

    before: RowNode
    step: int
    applied: Applied

    @property
    def fixed(self) -> bool:
        """Whether nothing random is in it."""
        return self.before.fixed and not self.applied.random

    def described(self) -> str:
        """The function's name."""
        return f"{self.before.described()}, {self.applied.name}"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """What the function gives for these rows."""
        given = self.before.rows(numbers, epoch, key)
        made = []
        for k, number in enumerate(numbers.tolist()):
            more: tuple[np.random.Generator, ...] = ()
            if self.applied.random:
                more = (np.random.Generator(bits(self.step, epoch, number, *key)),)
            row = tuple(column[k] for column in given)
            made.append(self.applied(row, f"row {number}", *more))
        return stacked(made, numbers, self.applied.name)

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """They are made each time."""
        return None


def check_fixed(before: RowNode) -> None:
    """Raises DelianError where rows differ between epochs, or never end."""
    if not before.fixed:
        raise DelianError(
            "a cache after a shuffle, or after a random function, would repeat one epoch",
            "put cache() before shuffle() and before map(..., random=True)",
        )
    if before.length >= ENDLESS:
        raise DelianError("a cache of endless rows", "put cache() before repeat()")
