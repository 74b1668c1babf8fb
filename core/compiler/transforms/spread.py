"""Which values differ from lane to lane, and what their types are over all lanes.

A value is *batched* when it depends on a batched one. A loop's answer is a fixed point over its
carries; where lanes leave it at different times, every carry that changes is batched. The answers
are on flags, a block at a time, without building any IR.
"""

from __future__ import annotations

from typing import TypeAlias

from ..ir import Block, ListType, Op, Type, in_lanes
from .activity import BRANCHES, LEADING, carries_start

Flags: TypeAlias = tuple[bool, ...]


class Kinds:
    """The types of batched values."""

    def __init__(self, size: int, lanes: bool) -> None:
        self.size = size
        self.lanes = lanes

    def of(self, type: Type, flag: bool = True) -> Type:
        if not flag:
            return type
        if isinstance(type, ListType) and not self.lanes and not type.lanes:
            return ListType(self.of(type.element))
        return in_lanes(type, (self.size,))


class Spread:
    """Which values differ from lane to lane: those that depend on batched ones.

    `lanes` makes all lists batched. The answers are remembered by block.
    """

    def __init__(self, lanes: bool) -> None:
        self.lanes = lanes
        self._known: dict[tuple[int, Flags], Flags] = {}
        self._kept: dict[int, Block] = {}  # keeps each block alive, so that its id stays its own

    def results(self, block: Block, params: Flags) -> Flags:
        key = (id(block), params)
        if key not in self._known:
            self._kept[id(block)] = block
            flags = dict(zip(block.params, params, strict=True))
            for op in block.ops:
                made = self.op(op, tuple(flags[v] for v in op.operands))
                flags.update(zip(op.results, made, strict=True))
            self._known[key] = tuple(flags[r] for r in block.results)
        return self._known[key]

    def op(self, op: Op, operands: Flags) -> Flags:
        if op.name in BRANCHES:
            if operands[0]:
                return (True,) * len(op.results)
            branches = [self.results(r, operands[1:]) for r in op.regions]
            return tuple(any(flags) for flags in zip(*branches, strict=True))
        if op.name in LEADING:
            return self.carries(op, operands)[0]
        if self.lanes and any(isinstance(r.type, ListType) for r in op.results):
            return (True,) * len(op.results)
        return (any(operands),) * len(op.results)

    def carries(self, op: Op, operands: Flags) -> tuple[Flags, bool]:
        """Which carries of a loop are batched in some iteration, and whether it needs a mask."""
        start, lead = carries_start(op), LEADING[op.name]
        bounds, consts, carries = operands[:lead], operands[lead:start], operands[start:]
        body = op.regions[-1]
        index = (any(bounds),) if op.name == "for" else ()
        still = [
            r is p
            for r, p in zip(body.results, body.params[len(index) + len(consts) :], strict=True)
        ]
        while True:
            after = self.results(body, index + consts + carries)
            if op.name == "while":
                masked = self.results(op.regions[0], consts + carries)[0]
            else:
                masked = any(bounds)
            grown = tuple(
                now or then or (masked and not same)
                for now, then, same in zip(carries, after, still, strict=True)
            )
            if grown == carries:
                return carries, masked
            carries = grown
