"""Comparisons and differences made again where they are read, instead of stored in between.

Reverse mode reads, far from where it was made, which elements a clamp took and which tied for a
maximum. A mask of bytes in addition to floats costs memory, and keeps a compiler from filling
vectors with floats. What it was made from is stored in any case, so it is compared again, in the
loop that asks. A clamp says from its result what it did, which is what the next layer reads:

    %2 = le(%1, 0)                         %2 = le(%1, 0)
    %3 = select(%2, 0, %1)                 %3 = select(%2, 0, %1)
    ... conv(%3, ...)                 =>   ... conv(%3, ...)
    %9 = select(%2, 0, %8)                 %10 = le(%3, 0)
                                           %9 = select(%10, 0, %8)

A value less its mean is read by a normalisation and by its gradient, and costs one subtraction.
"""

from __future__ import annotations

from ...ir import Block, Builder, DType, Function, Op, Value
from .readers import Readers

_COMPARISONS = frozenset(["eq", "ne", "lt", "le"])
#: Smaller masks stay.
SIZE_MIN = 1024
#: How many times smaller what is taken off must be.
SMALLER_MIN = 16


def rematerialize_masks(function: Function) -> Function:
    """The function with comparisons and differences made where they are read."""
    found = any(_is_mask(op) or _is_difference(op) for op in function.body.walk())
    return function.with_body(_Masks(function.body).again()) if found else function


def _is_mask(op: Op) -> bool:
    return (
        op.name in _COMPARISONS
        and op.result.tensor.size >= SIZE_MIN
        and op.operands[0].dtype is DType.F32
    )


def _is_difference(op: Op) -> bool:
    large = op.name == "sub" and op.result.tensor.size >= SIZE_MIN
    return large and op.result.dtype is DType.F32


class _Masks:
    """The masks of one block, and by what each can be made again."""

    def __init__(self, block: Block) -> None:
        self.block = block
        # Ties for a maximum are found after all have been seen.
        self.readers = Readers(block, late=frozenset(["eq"]))
        #: A mask: the operation that makes it again, and its operands.
        self.sources: dict[Value, tuple[str, tuple[Value, Value]]] = {}
        #: A mask: the operations that read it where it was made.
        self.near: dict[Value, set[Op]] = {}

    def again(self) -> Block:
        for op in self.block.ops:
            if op.name == "select":
                self._clamp(op)
        for op in self.block.ops:
            users = self.readers.of(op.result) if _is_mask(op) else []
            known = len(users) > 1 and op.result not in self.sources
            if known and all(self.readers.is_stored(v) for v in op.operands):
                self.sources[op.result] = op.name, (op.operands[0], op.operands[1])
                self.near[op.result] = {users[0]}
        for op in self.block.ops:
            users = self.readers.of(op.result) if self._is_centred(op) else []
            if len(users) > 1:
                self.sources[op.result] = op.name, (op.operands[0], op.operands[1])
                self.near[op.result] = {users[0]}
        b = Builder(self.block.params)
        mapping: dict[Value, Value] = {p: p for p in self.block.params}
        for op in self.block.ops:
            op = op.with_regions(_Masks(r).again() for r in op.regions)
            for v in op.operands:
                if v not in self.sources or op in self.near[v]:
                    continue
                name, operands = self.sources[v]
                if all(x in mapping for x in operands):
                    with b.at(op.locs):
                        mapping[v] = b(name, *(mapping[x] for x in operands))
            b.copy(op, mapping)
        return b.finish([mapping[r] for r in self.block.results])

    def _is_centred(self, op: Op) -> bool:
        """Whether something small is taken off a value that is stored, to give one that is not."""
        if not _is_difference(op) or self.readers.is_stored(op.result):
            return False
        x, y = op.operands
        part, spread = self.readers.made.get(x), self.readers.made.get(y)
        if part is not None and part.name == "slice":  # of a window, which is written out
            return False
        if spread is None or spread.name != "broadcast" or not self.readers.is_stored(x):
            return False
        return bool(SMALLER_MIN * spread.operands[0].tensor.size <= op.result.tensor.size)

    def _clamp(self, op: Op) -> None:
        """Whether it is max(x, number), where x may itself be at most another number."""
        mask, low, inner = op.operands
        below = self.readers.made.get(mask)
        if below is None or below.name != "le" or not _is_mask(below) or mask in self.sources:
            return
        x, bound = below.operands
        if self.readers.number(bound) is None or self.readers.number(bound) != self.readers.number(
            low
        ):
            return
        if not self.readers.is_stored(op.result):
            return
        if inner is not x and not self._capped(op, inner, x, bound):
            return
        self.sources[mask] = "le", (op.result, bound)
        self.near[mask] = {op}

    def _capped(self, op: Op, inner: Value, x: Value, bound: Value) -> bool:
        """Whether `inner` is x, or a number above the bound where x is at least that."""
        cap = self.readers.made.get(inner)
        above = (
            None if cap is None or cap.name != "select" else self.readers.made.get(cap.operands[0])
        )
        if cap is None or above is None or above.name != "le" or len(self.readers.of(inner)) > 1:
            return False
        most = self.readers.number(above.operands[0])
        least = self.readers.number(bound)
        same = above.operands[1] is x and cap.operands[2] is x
        if not same or most is None or most != self.readers.number(cap.operands[1]):
            return False
        if least is None or not most > least:
            return False
        self.sources[above.result] = "le", (above.operands[0], op.result)
        self.near[above.result] = {cap}
        return True
