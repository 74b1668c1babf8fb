"""The table of operators: for each of ONNX's, the function in Delian's vocabulary that it is.

The function takes the node's inputs by position (None for one left out) and its attributes by
name, under ONNX's own names; its defaults are ONNX's. So most versions of an operator are one
function: an attribute that became an input is a keyword in old models and a position in new ones.
Where a version changes a meaning, the table has a row for each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """How an operator is read."""

    function: Callable[..., Any]
    """In Delian's vocabulary."""
    known: tuple[int, ...] = ()
    """Inputs whose values the program must know: shapes, axes, counts."""
    fixed: tuple[int, ...] = ()
    """Inputs that are not trained where they are tensors of the model: statistics, scales."""
    several: bool = False
    """Whether the function gives a tuple, one item an output; else the one output."""
    counted: bool = False
    """Whether it takes `outputs`: which outputs the graph asks for, a bool each."""
    last: Callable[..., Any] | None = None
    """The function of images [N, space..., C]: its first input and its first output are such."""
    pointwise: bool = False
    """Whether it works on each element of inputs of one rank, whatever the order of the axes."""
    shape_only: bool = False
    """Whether the result depends on the shapes of the inputs alone, never on their values."""
    since: int = 1
    """The first version of the operator set that it is right for."""
    wide: bool = True
    """Whether it computes: with bf16 in f32, and rounds the results."""
    ignored: tuple[str, ...] = field(default=())
    """Attributes that change nothing here."""

    def attributes(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the attributes that the function takes, and of those that it needs."""
        return _keywords(self.function)


Rows = Mapping[str, "Row | tuple[Row, ...]"]


@functools.cache
def _keywords(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str]]:
    if function.__module__ == "numpy" or isinstance(function, np.ufunc):
        return frozenset(), frozenset()  # NumPy's options are none of ONNX's
    named = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    needed = frozenset(p.name for p in named if p.default is inspect.Parameter.empty)
    return frozenset(p.name for p in named), needed


def row_of(rows: Rows, operator: str, version: int) -> Row | None:
    """The row of an operator in a version of its set, or None."""
    found = rows.get(operator)
    if found is None or isinstance(found, Row):
        return found
    fitting = [row for row in found if row.since <= version]
    return max(fitting, key=lambda row: row.since) if fitting else None
