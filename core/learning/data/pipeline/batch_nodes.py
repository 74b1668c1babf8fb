"""Steps from `batch` on: each gives any of its batches by number, in any epoch.

A compiled function that takes the first batches of rows in memory (arrays, a cache, a window) gets
the whole array and the numbers of the rows: `f(x[numbers])` is one program, and the batch is never
written in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ....common.errors import DelianError, ProgramError
from ....compiler.api import Compiled
from .row_columns import Applied, Array, Columns, Key, Numbers
from .row_nodes import ENDLESS, OfSource, PipelineStep, RowNode, SameLength


class BatchNode(PipelineStep, Protocol):
    """A step that gives batches."""

    def batch(self, number: int, epoch: int, key: Key) -> Columns:
        """This batch."""


@dataclass(frozen=True)
class Batched(OfSource):
    """Consecutive rows together."""

    before: RowNode
    size: int
    partial: bool
    """Whether the last batch may be smaller; else it is left out."""

    @property
    def length(self) -> int:
        """How many batches there are."""
        rows = self.before.length
        return -(-rows // self.size) if self.partial else rows // self.size

    def described(self) -> str:
        """The size."""
        return f"{self.before.described()}, {self.size} a batch"

    def batch(self, number: int, epoch: int, key: Key) -> Columns:
        """This batch."""
        return self.before.rows(self.numbers(number), epoch, key)

    def numbers(self, number: int) -> Numbers:
        """The rows of a batch."""
        start = number * self.size
        return np.arange(start, min(start + self.size, self.before.length))


class BatchMapped(OfSource, SameLength):
    """A function of a batch's arrays."""

    before: BatchNode

    def __init__(self, before: BatchNode, applied: Applied) -> None:
        if applied.random:
            raise DelianError(
                f"{applied.name} is random and takes a batch",
                "put map(..., random=True) before batch(): each row then has its own generator",
            )
        self.before, self.applied = before, applied
        self._fused = _fused(before, applied)

    def described(self) -> str:
        """The function's name."""
        return f"{self.before.described()}, {self.applied.name}"

    def batch(self, number: int, epoch: int, key: Key) -> Columns:
        """What the function gives."""
        if self._fused is not None:
            made = self._fused.batch(number, epoch, key)
            if made is not None:
                return made
        given = self.before.batch(number, epoch, key)
        made = self.applied(given, f"batch {number}")
        return tuple(
            value if isinstance(value, np.ndarray) else np.asarray(value) for value in made
        )


@dataclass(frozen=True)
class BatchPart(OfSource):
    """The first batches."""

    before: BatchNode
    length: int

    def described(self) -> str:
        """How many."""
        return f"{self.before.described()}, {self.length} batches"

    def batch(self, number: int, epoch: int, key: Key) -> Columns:
        """This batch."""
        return self.before.batch(number, epoch, key)


@dataclass(frozen=True)
class BatchRepeated(OfSource):
    """The batches again and again, each time in another epoch."""

    before: BatchNode
    times: int

    @property
    def length(self) -> int:
        """How many batches there are in all."""
        return min(ENDLESS, self.before.length * self.times)

    def described(self) -> str:
        """How often."""
        return f"{self.before.described()}, {self.times} times"

    def batch(self, number: int, epoch: int, key: Key) -> Columns:
        """This batch."""
        turn, within = divmod(number, self.before.length)
        return self.before.batch(within, epoch * self.times + turn, key)


class _Fused:
    """A gather and the compiled function after it as one program."""

    def __init__(self, batched: Batched, applied: Applied) -> None:
        self._batched = batched
        function: Any = applied.function

        def gathered(rows: Any, numbers: Any) -> Any:
            return function(rows[numbers])

        self._run: Callable[..., Any] | None = Compiled(
            gathered, function.backend, (), function.profile, function.threads, function.checks
        )

    def batch(self, number: int, epoch: int, key: Key) -> Columns | None:
        """None: the rows are in no arrays, or the program cannot be compiled."""
        run = self._run
        if run is None:
            return None
        node = self._batched.before
        found = node.located(self._batched.numbers(number), epoch, key)
        if found is None or not _is_plain(found.columns[0]):
            return None
        try:
            made = run(found.columns[0], found.numbers)
        except ProgramError:
            # The function alone may compile; its own error is the clearer one if it does not.
            self._run = None
            return None
        return made, *(column[found.numbers] for column in found.columns[1:])


def _is_plain(rows: Array) -> bool:
    return rows.flags.c_contiguous and rows.dtype.isnative


def _fused(before: BatchNode, applied: Applied) -> _Fused | None:
    if not isinstance(before, Batched) or applied.on != 0 or applied.random:
        return None
    if type(applied.function) is not Compiled or applied.function.donate:
        return None
    return _Fused(before, applied)
