"""Dead-code elimination: drops what the results of a block do not need, inside regions too.

It drops operations none of whose results is used; results, arguments and branches' work of an `if`
or `switch` that are not read; carries of a loop that feed nothing but themselves (a counter, a list
of saved values); and constants of a loop that its regions do not read. Every primitive is pure, so
nothing else can matter.

Which carries of a loop live is a fixed point: a carry lives when its final value is used, when a
`while`'s condition reads it, or when a living carry's next value depends on it. Dependence is
computed once a block, as a bit mask over its parameters for each result, so that the cost stays
linear however deep loops nest.

Where n is not used after the loop:

    for(lo, hi, x, acc, n) {consts=1}            for(lo, hi, x, acc) {consts=1}
      (i, x, acc, n) -> (acc * x, n + 1)   =>      (i, x, acc) -> (acc * x)

Operations that stay as they are, are shared with the block that was given.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, Op, Value

#: Operands of a loop that are not the body's constants or carries.
_BOUNDS = {"while": 0, "for": 2}
#: Operations of which one region runs, chosen by the first operand.
_BRANCHES = ("if", "switch")


def dce(block: Block) -> Block:
    """The block without what its results do not need. Its parameters stay."""
    return _Eliminator().block(block, [True] * len(block.results))


def uses(block: Block) -> set[Value]:
    """The values that a block's operations and results read."""
    used = {v for op in block.ops for v in op.operands}
    used.update(block.results)
    return used


class _Eliminator:
    def __init__(self) -> None:
        self._masks: dict[int, tuple[Block, list[int]]] = {}

    def block(self, block: Block, wanted: Sequence[bool]) -> Block:
        """The block with the wanted results alone; the same object when nothing is dropped."""
        results = tuple(r for r, flag in zip(block.results, wanted, strict=True) if flag)
        live = set(results)
        ops: list[Op] = []
        changed = len(results) != len(block.results)
        for op in reversed(block.ops):
            if live.isdisjoint(op.results):
                changed = True
                continue
            kept = self._shrink(op, live) if op.regions else op
            changed = changed or kept is not op
            live.update(kept.operands)
            ops.append(kept)
        if not changed:
            return block
        ops.reverse()
        return Block(block.params, ops, results)

    def _shrink(self, op: Op, live: set[Value]) -> Op:
        """An operation with regions, without its dead results and arguments."""
        wanted = [r in live for r in op.results]
        if op.name in _BRANCHES:
            return self._shrink_branch(op, wanted)
        if op.name in _BOUNDS:
            return self._shrink_loop(op, wanted)
        return op

    def _shrink_branch(self, op: Op, wanted: list[bool]) -> Op:
        regions = [self.block(r, wanted) for r in op.regions]
        used = [uses(r) for r in regions]
        arity = len(op.operands) - 1
        keep = [
            i
            for i in range(arity)
            if any(r.params[i] in u for r, u in zip(regions, used, strict=True))
        ]
        if all(wanted) and len(keep) == arity and all(map(_is, regions, op.regions)):
            return op
        cut = tuple(Block(tuple(r.params[i] for i in keep), r.ops, r.results) for r in regions)
        operands = (op.operands[0], *(op.operands[1 + i] for i in keep))
        results = tuple(r for r, flag in zip(op.results, wanted, strict=True) if flag)
        return Op(op.name, operands, results, op.attrs, cut, op.locs)

    def _shrink_loop(self, op: Op, wanted: list[bool]) -> Op:
        *conds, body = op.regions
        lead, consts = _BOUNDS[op.name], int(op.attrs["consts"])
        index = 1 if op.name == "for" else 0
        first = index + consts  # of the carries among the body's parameters
        live = self._live_carries(op, sum(1 << j for j, flag in enumerate(wanted) if flag))
        lives = [bool(live >> j & 1) for j in range(len(wanted))]
        new_body = self.block(body, lives)
        new_conds = [self.block(c, [True]) for c in conds]
        used = uses(new_body)
        for cond, original in zip(new_conds, conds, strict=True):
            # A condition has no index, so its parameters stand where the body's do.
            read = uses(cond)
            used.update(b for b, c in zip(body.params, original.params, strict=True) if c in read)
        fixed = [i for i in range(consts) if body.params[index + i] in used]
        if (
            all(lives)
            and len(fixed) == consts
            and all(map(_is, (*new_conds, new_body), op.regions))
        ):
            return op
        moving = [j for j, flag in enumerate(lives) if flag]

        def cut(region: Block, skip: int) -> Block:
            head = region.params[:skip]
            mid = tuple(region.params[skip + i] for i in fixed)
            tail = tuple(region.params[skip + consts + j] for j in moving)
            return Block((*head, *mid, *tail), region.ops, region.results)

        operands = (
            *op.operands[:lead],
            *(op.operands[lead + i] for i in fixed),
            *(op.operands[lead + consts + j] for j in moving),
        )
        assert len(body.params) == first + len(lives)
        return Op(
            op.name,
            operands,
            tuple(op.results[j] for j in moving),
            {**op.attrs, "consts": len(fixed)},
            (*(cut(c, 0) for c in new_conds), cut(new_body, index)),
            op.locs,
        )

    def _live_carries(self, op: Op, live: int) -> int:
        """Which carries live, given which final values are used; both as bit masks."""
        *conds, body = op.regions
        index = 1 if op.name == "for" else 0
        shift = index + int(op.attrs["consts"])
        for cond in conds:
            live |= self.masks(cond)[0] >> (shift - index)
        masks = [m >> shift for m in self.masks(body)]
        todo = live
        while todo:
            low = todo & -todo
            todo ^= low
            fresh = masks[low.bit_length() - 1] & ~live
            live |= fresh
            todo |= fresh
        return live

    def masks(self, block: Block) -> list[int]:
        """For each result of a block, the parameters that it depends on, as a bit mask."""
        known = self._masks.get(id(block))
        if known is not None:
            return known[1]
        mask = {p: 1 << i for i, p in enumerate(block.params)}
        for op in block.ops:
            if op.regions:
                self._region_masks(op, mask)
                continue
            m = 0
            for v in op.operands:
                m |= mask[v]
            for r in op.results:
                mask[r] = m
        found = [mask[r] for r in block.results]
        # The block is kept with the answer, so that its id stays its own.
        self._masks[id(block)] = (block, found)
        return found

    def _region_masks(self, op: Op, mask: dict[Value, int]) -> None:
        operands = [mask[v] for v in op.operands]
        if op.name in _BRANCHES:
            branches = [self.masks(r) for r in op.regions]
            for r, *masks in zip(op.results, *branches, strict=True):
                either = 0
                for m in masks:
                    either |= m
                mask[r] = operands[0] | _select(either, operands[1:])
            return
        if op.name not in _BOUNDS:
            whole = 0
            for m in operands:
                whole |= m
            mask.update((r, whole) for r in op.results)
            return
        lead, consts = _BOUNDS[op.name], int(op.attrs["consts"])
        index = 1 if op.name == "for" else 0
        rest = operands[lead:]
        # How often a loop runs decides every carry: the bounds of a `for`, what the condition of a
        # `while` reads.
        control = 0
        for m in operands[:lead]:
            control |= m
        found: dict[int, int] = {}
        for j, result in enumerate(op.results):
            live = self._live_carries(op, 1 << j)
            if live not in found:
                found[live] = control | self._loop_mask(op, live, rest, consts, index)
            mask[result] = found[live]

    def _loop_mask(self, op: Op, live: int, rest: list[int], consts: int, index: int) -> int:
        """What the living carries depend on, from outside of the loop."""
        needed = 0
        for j, m in enumerate(self.masks(op.regions[-1])):
            if live >> j & 1:
                needed |= (m >> index) | 1 << (consts + j)
        for cond in op.regions[:-1]:
            needed |= self.masks(cond)[0]
        return _select(needed, rest)


def _select(needed: int, masks: Sequence[int]) -> int:
    """The union of the masks that the bits of `needed` pick."""
    union = 0
    for i, m in enumerate(masks):
        if needed >> i & 1:
            union |= m
    return union


def _is(a: object, b: object) -> bool:
    return a is b
