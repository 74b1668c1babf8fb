"""Weights in few bits: each product has the arithmetic that expands its own.

A frozen weight is stored as codes and scales, and becomes numbers by arithmetic that costs next to
nothing. Forward and backward products, and those of a checkpoint, read the same numbers:

    %3 = convert(%codes) {dtype=f32}            %3 = convert(%codes)      %6 = convert(%codes)
    %4 = mul(%3, %scales)                       %4 = mul(%3, %scales)     %7 = mul(%6, %scales)
    %5 = dot(%x, %4)                     =>     %5 = dot(%x, %4)
    %9 = dot(%g, %4) {contract_b=[1]}           %9 = dot(%g, %7) {contract_b=[1]}

Then nothing but one product reads them, and its packing computes them part by part
(`schedule/expanded_operands.py`): the weight is never stored in f32. Bytes that hold several codes
are repeated before they are widened, and not after it, so that all of it is one loop.
"""

from __future__ import annotations

import math

from ...ir import Block, Builder, DType, Function, Op, Value
from ..region_rules import WIDENED_MIN, widens
from ..schedule.block_steps import is_elementwise
from ..schedule.views import VIEWS
from .readers import Readers

#: The expanded numbers take at least so many times the memory of what they are computed from.
SMALLER_MIN = 1.5
#: Operations of one expansion, views among them.
_OPS_MAX = 24
#: What costs a packing next to nothing.
_CHEAP = frozenset(["convert", "mul", "add", "sub", "neg", "and", "or", "xor", "shl", "shr"])


def rematerialize_expansions(function: Function) -> Function:
    """The function with one expansion of a weight for each product."""
    if not any(widens(op) for op in function.body.walk()):
        return function
    body = _block(function.body)
    return function if body is function.body else function.with_body(body)


def _block(block: Block) -> Block:
    ops = [op.with_regions(_block(r) for r in op.regions) for op in block.ops]
    changed = any(a is not b for a, b in zip(ops, block.ops, strict=True))
    readers = Readers(block)
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in ops:
        chain = _chain(readers, op.operands[1]) if _is_product(op) else []
        spread = {made: _widened_before(readers, made) for made in chain}
        shared = any(len(readers.of(made.result)) > 1 for made in chain)
        if not shared and not any(spread.values()):
            b.copy(op, mapping)
            continue
        changed, own = True, dict(mapping)
        for made in chain:
            _copy(b, made, spread[made], own)
        mapping[op.result] = b.copy(op, own)[0]
    return b.finish([mapping[r] for r in block.results]) if changed else block


def _is_product(op: Op) -> bool:
    return op.name == "dot" and op.result.dtype is DType.F32


def _widened_before(readers: Readers, op: Op) -> Op | None:
    """The operation that widens what a broadcast repeats."""
    made = readers.made.get(op.operands[0]) if op.name == "broadcast" else None
    return made if made is not None and widens(made) else None


def _copy(b: Builder, op: Op, widened: Op | None, mapping: dict[Value, Value]) -> None:
    """Copies an operation; one that repeats what was widened widens what it repeats."""
    if widened is None:
        b.copy(op, mapping)
        return
    with b.at(op.locs):
        spread = b.emit("broadcast", (mapping[widened.operands[0]],), op.attrs)
        mapping[op.result] = b.emit("convert", spread, widened.attrs)[0]


def _chain(readers: Readers, value: Value) -> list[Op]:
    """The operations that expand a weight, in order; none where it is no such weight."""
    chain: list[Op] = []
    leaves: dict[Value, None] = {}
    waiting = [value]
    while waiting:
        v = waiting.pop()
        op = readers.made.get(v)
        cheap = op is not None and (op.name in VIEWS or (op.name in _CHEAP and is_elementwise(op)))
        if op is None or not cheap or (op.name not in VIEWS and v.tensor.size < WIDENED_MIN):
            leaves[v] = None
        elif op not in chain:
            chain.append(op)
            waiting += op.operands
    if not any(widens(op) for op in chain) or len(chain) > _OPS_MAX:
        return []
    stored = math.fsum(v.tensor.nbytes for v in leaves if readers.number(v) is None)
    if value.tensor.size < WIDENED_MIN or stored * SMALLER_MIN > value.tensor.nbytes:
        return []
    order = {op: i for i, op in enumerate(readers.block.ops)}
    return sorted(chain, key=lambda op: order[op])
