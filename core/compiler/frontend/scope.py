"""Scopes: blocks under construction, and the closing of regions (lambda lifting).

While a region is built, its operations may use values of the blocks around it. `close` finds those
free values and makes them parameters, in order of first use, so that the finished block sees
nothing of the outside; the operation that holds the region passes them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.errors import Loc
from ..ir import Block, Builder, DType, Op, Value
from .flow.index_ranges import Ranges


class Scope(Builder):
    """A builder that knows its constants and the ranges of whole numbers."""

    def __init__(self, locs: tuple[Loc, ...], natural: Ranges, tally: list[int]) -> None:
        super().__init__((), locs)
        self.natural = natural
        #: How many operations all scopes of the program were given.
        self.tally = tally
        self.numbers: dict[tuple[DType, tuple[int, ...], bytes], Value] = {}
        self.arrays: dict[tuple[int, DType], tuple[Value, Any]] = {}
        #: Indices that are checked already, each with the size of its axis.
        self.checked: set[tuple[Value, int]] = set()
        #: Where masks are true: the places along each axis, and their number (`ragged`).
        self.selections: dict[Value, Any] = {}
        #: What a region that was left changed in place: array -> what it held (`stores`).
        self.changed: dict[Any, Any] = {}
        #: Likewise the lists, dicts and sets (`containers`), and the region itself.
        self.contents: dict[int, tuple[Any, Any]] = {}
        self.region: Any = None
        #: The parameters of the region that it is.
        self.inputs: Sequence[Value] = ()

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        attrs: Mapping[str, Any] | None = None,
        regions: Sequence[Block] = (),
        locs: tuple[Loc, ...] | None = None,
    ) -> tuple[Value, ...]:
        results = super().emit(name, operands, attrs, regions, locs)
        self.tally[0] += 1
        self.natural.note(name, operands, attrs or {}, results)
        return results

    def number(self, value: Any, dtype: DType, shape: tuple[int, ...] = ()) -> Value:
        """A repeated number; one constant and one broadcast a scope, however often asked for."""
        array = np.array(value, dtype=dtype.numpy)
        key = (dtype, shape, array.tobytes())
        found = self.numbers.get(key)
        if found is None:
            if shape:
                scalar = self.number(value, dtype)
                found = self.emit("broadcast", (scalar,), {"shape": shape, "dims": ()})[0]
            else:
                array.setflags(write=False)
                found = self.emit("constant", (), {"value": array})[0]
            self.numbers[key] = found
        return found

    def array(self, value: np.ndarray[Any, Any], dtype: DType) -> Value:
        """A constant array, a copy of `value` as it is now."""
        key = (id(value), dtype)
        found = self.arrays.get(key)
        if found is None:
            copy = np.array(value, dtype=dtype.numpy, order="C")
            copy.setflags(write=False)
            made = self.emit("constant", (), {"value": copy})[0]
            found = self.arrays[key] = (made, value)  # Keeps `value` alive, and so its id its own.
        return found[0]


def free_values(
    ops: Iterable[Op], params: Iterable[Value], results: Iterable[Value]
) -> list[Value]:
    """What operations use and do not compute, in order of first use."""
    defined = set(params)
    free: dict[Value, None] = {}
    for op in ops:
        for operand in op.operands:
            if operand not in defined:
                free[operand] = None
        defined.update(op.results)
    for result in results:
        if result not in defined:
            free[result] = None
    return list(free)


def close(
    scope: Scope,
    before: Sequence[Value],
    free: Sequence[Value],
    after: Sequence[Value],
    results: Sequence[Value],
) -> Block:
    """The scope's block with parameters before..., free..., after....

    `before` and `after` are the region's own parameters; each of `free` becomes a new one.
    """
    mapping = {v: Value(v.type) for v in free}
    ops = scope.ops
    if mapping:
        ops = []
        for op in scope.ops:
            if not mapping.keys().isdisjoint(op.operands):
                operands = tuple([mapping.get(v, v) for v in op.operands])
                op = Op(op.name, operands, op.results, op.attrs, op.regions, op.locs)
            ops.append(op)
    params = (*before, *(mapping[v] for v in free), *after)
    return Block(params, ops, tuple(mapping.get(r, r) for r in results))


def union(*frees: Sequence[Value]) -> list[Value]:
    """Free values of several regions, each once, in order."""
    return list(dict.fromkeys(v for free in frees for v in free))
