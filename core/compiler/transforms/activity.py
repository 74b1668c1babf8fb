"""Which values a derivative must follow.

A value is *varied* when it depends, differentiably, on what we differentiate by, and *useful* when
what we differentiate depends, differentiably, on it. Only a value that is both gets a cotangent
(Hascoët and Pascual, "The Tapenade automatic differentiation tool", 2013, section 4.2). A loop's
answer is a fixed point over its carries.

Both questions are answered on flags, a block at a time and without building any IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..ir import Block, ListType, Op, Type, Value
from ..primitives import PRIMITIVES

Flags: TypeAlias = tuple[bool, ...]

#: Operations that hold regions, with what stands before the region's own arguments among the
#: operands.
LEADING = {"if": 1, "switch": 1, "while": 0, "for": 2}

#: Those of which one region runs, chosen by the first operand.
BRANCHES = ("if", "switch")


def is_differentiable(type: Type) -> bool:
    """Whether values of a type have cotangents: float tensors, and lists of them to any depth."""
    while isinstance(type, ListType):
        type = type.element
    return type.dtype.is_float


def check_wrt(block: Block, wrt: Sequence[int]) -> None:
    """Raises ValueError unless `wrt` names different, differentiable parameters of the block."""
    for i in wrt:
        if not 0 <= i < len(block.params):
            raise ValueError(f"no parameter {i}: the block has {len(block.params)}")
        if not is_differentiable(block.params[i].type):
            raise ValueError(f"parameter {i} is {block.params[i].type}, which has no derivative")
    if len(set(wrt)) != len(wrt):
        raise ValueError(f"a parameter is named twice: {list(wrt)}")


def carries_start(op: Op) -> int:
    """The index of a loop's first carry among its operands."""
    return LEADING[op.name] + int(op.attrs["consts"])


class Activity:
    """Answers both questions for one transform, and caches the answer for each block."""

    def __init__(self) -> None:
        self._varied: dict[tuple[int, Flags], Flags] = {}
        self._useful: dict[tuple[int, Flags], Flags] = {}
        self._kept: dict[int, Block] = {}  # keeps each block alive, so that its id stays its own

    def varied_values(self, block: Block, params: Sequence[bool]) -> set[Value]:
        """The varied values of a block, given which of its parameters are."""
        varied = {p for p, flag in zip(block.params, params, strict=True) if flag}
        for op in block.ops:
            flags = self.varied_results(op, tuple(v in varied for v in op.operands))
            varied.update(r for r, flag in zip(op.results, flags, strict=True) if flag)
        return varied

    def varied_results(self, op: Op, operands: Flags) -> Flags:
        """Which results of an operation are varied, given which of its operands are."""
        if not any(operands):
            return (False,) * len(op.results)
        if op.name in BRANCHES:
            branches = [self._block_varied(r, operands[1:]) for r in op.regions]
            return tuple(any(flags) for flags in zip(*branches, strict=True))
        if op.name in LEADING:
            return self.varied_carries(op, operands)
        if PRIMITIVES[op.name].vjp is None and op.name != "custom_vjp":
            return (False,) * len(op.results)
        return tuple(is_differentiable(r.type) for r in op.results)

    def varied_carries(self, op: Op, operands: Flags) -> Flags:
        """A loop's carries that are varied in some iteration: the fixed point, growing."""
        start = carries_start(op)
        index = (False,) if op.name == "for" else ()
        consts, carries = operands[LEADING[op.name] : start], operands[start:]
        while True:
            after = self._block_varied(op.regions[-1], index + consts + carries)
            grown = tuple(a or b for a, b in zip(carries, after, strict=True))
            if grown == carries:
                return carries
            carries = grown

    def _block_varied(self, block: Block, params: Flags) -> Flags:
        key = (id(block), params)
        if key not in self._varied:
            self._kept[id(block)] = block
            varied = self.varied_values(block, params)
            self._varied[key] = tuple(r in varied for r in block.results)
        return self._varied[key]

    def useful_operands(self, op: Op, results: Flags) -> Flags:
        """Which operands of an operation are useful, given which of its results are."""
        if not any(results):
            return (False,) * len(op.operands)
        if op.name in BRANCHES:
            branches = [self._block_useful(r, results) for r in op.regions]
            return (False, *(any(flags) for flags in zip(*branches, strict=True)))
        if op.name in LEADING:
            consts, carries = self.useful_carries(op, results)
            return (False,) * LEADING[op.name] + consts + carries
        if PRIMITIVES[op.name].vjp is None and op.name != "custom_vjp":
            return (False,) * len(op.operands)
        return tuple(is_differentiable(v.type) for v in op.operands)

    def useful_carries(self, op: Op, results: Flags) -> tuple[Flags, Flags]:
        """A loop's useful (constants, carries): the fixed point, growing."""
        consts = int(op.attrs["consts"])
        index = 1 if op.name == "for" else 0
        while True:
            before = self._block_useful(op.regions[-1], results)[index:]
            grown = tuple(a or b for a, b in zip(results, before[consts:], strict=True))
            if grown == results:
                return before[:consts], results
            results = grown

    def _block_useful(self, block: Block, results: Flags) -> Flags:
        key = (id(block), results)
        if key not in self._useful:
            self._kept[id(block)] = block
            useful = {r for r, flag in zip(block.results, results, strict=True) if flag}
            for op in reversed(block.ops):
                flags = self.useful_operands(op, tuple(r in useful for r in op.results))
                useful.update(v for v, flag in zip(op.operands, flags, strict=True) if flag)
            self._useful[key] = tuple(p in useful for p in block.params)
        return self._useful[key]
